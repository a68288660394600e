"""The report page: what `index.html` and the scripts beside it consist of."""
