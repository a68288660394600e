"""What is drawn of the channel vectors at the positions of a layer."""
