"""Callbacks that draw feature maps in the training loops of other packages; each is imported only when it is used."""
