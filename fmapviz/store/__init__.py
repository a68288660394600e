"""Files on the disk: runs, units, shards, storage, and run-level files."""
