"""Draw feature maps while a network is trained, without disturbing the training."""
