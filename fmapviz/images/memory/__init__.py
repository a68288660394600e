"""Images that are given in memory: Pillow pictures, NumPy arrays, tensors."""
