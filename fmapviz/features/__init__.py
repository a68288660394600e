"""One folder for each feature; the rest of the package works without it."""
