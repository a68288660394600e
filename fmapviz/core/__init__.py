"""Shared by all other packages: configuration, values, errors, events, files."""
