"""Run one configuration over all images, here or on a cluster."""
