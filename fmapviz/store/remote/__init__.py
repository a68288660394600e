"""Where runs are written: a directory of this machine, or an object store."""
