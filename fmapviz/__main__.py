"""`python -m fmapviz`."""

from fmapviz.cli import main

main()
