"""Where pictures go: one module per format."""
