"""Receptive fields by interval propagation: `tracking` runs a model, `rules` propagate fields through each operator."""
