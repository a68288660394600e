"""One folder for each capability that the rest of the package can do without."""
