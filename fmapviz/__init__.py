"""See what every layer of a vision network computes."""

__version__ = "0.1.0"
