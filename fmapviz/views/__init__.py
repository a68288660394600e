"""What can be drawn of a layer: one module per view."""
