"""`pyromq spark backup` and `restore`."""
