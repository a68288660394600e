"""Attention: capture the weights that a network computes between tokens, also where one fused operation hides them."""
