"""Tensors and arrays to captioned pictures."""
