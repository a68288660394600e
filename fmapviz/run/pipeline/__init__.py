"""Take images through reading, drawing and writing, several at a time."""
