"""What PyTorch's operators do to the dimensions of their operands, for whatever follows them through a forward pass."""
