"""Class activation maps: in a run, and for a batch of the user."""
