"""Capture layers in a forward or backward pass and leave the network unchanged."""
