"""Where pictures of many images go together: one module per format, of the same name as in `fmapviz.writers`."""
