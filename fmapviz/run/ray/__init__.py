"""The work of a run done by Ray."""
