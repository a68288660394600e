"""What all other packages share: configuration, values, errors, events, files."""
