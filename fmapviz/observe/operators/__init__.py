"""Describe how PyTorch's operators move the dimensions of their operands."""
