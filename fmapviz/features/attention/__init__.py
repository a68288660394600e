"""Draw the attention of a forward pass: of each head, and through all blocks."""
