"""Receptive fields by interval propagation: `tracking` runs a model, `rules` say how fields pass through each operator."""
