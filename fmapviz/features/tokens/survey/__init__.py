"""Survey all images of a run before the first is drawn."""
