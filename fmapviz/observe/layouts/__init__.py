"""Derive the axes of what layers return: `tracking` follows a forward pass, `rules` propagate axes through each operator."""
