"""What lies on the disk: runs, units, shards, storage, and files made of all units."""
