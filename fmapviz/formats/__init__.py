"""Output formats: one module per format, see `fmapviz.formats.base`."""
