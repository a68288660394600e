"""Find, build and fill a network."""
