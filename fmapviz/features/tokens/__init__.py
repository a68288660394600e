"""Compare the channel vectors at the positions of maps: cosines, clusters, foreground, matches."""
