"""A small trained network that comes with the package: it tells six shapes apart, and needs no network connection."""
