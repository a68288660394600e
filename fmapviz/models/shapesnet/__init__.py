"""A small trained network that comes with the package: it classifies six shapes and needs no download."""
