"""Shards: units of many images in one directory."""
