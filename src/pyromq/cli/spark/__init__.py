"""`pyromq spark`."""
