"""Receptive fields of layers: which pixels of the input each of their positions sees."""
