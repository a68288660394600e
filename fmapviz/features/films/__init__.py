"""Films of a run's pictures: MP4 and GIF."""
