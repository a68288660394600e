"""Where models come from: one module per source, whose contract is in `base`."""
