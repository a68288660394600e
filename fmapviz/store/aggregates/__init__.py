"""Results over all images of a run."""
