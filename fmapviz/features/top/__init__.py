"""The images with the largest values of each channel, and what the unit sees of them."""
