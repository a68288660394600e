"""Output formats: one module per format, see `fmapviz.writers.base`."""
