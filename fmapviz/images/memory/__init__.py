"""Images in memory: Pillow pictures, NumPy arrays, tensors."""
