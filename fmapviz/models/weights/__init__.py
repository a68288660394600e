"""Read weights files without running anything in them, and fit them into a network."""
