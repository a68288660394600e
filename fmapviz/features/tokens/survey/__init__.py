"""What all images of a run share is found out before the first is drawn."""
