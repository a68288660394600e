"""Find, decode and preprocess inputs."""
