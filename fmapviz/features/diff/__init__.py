"""Compare two networks, or one at the steps of its training."""
