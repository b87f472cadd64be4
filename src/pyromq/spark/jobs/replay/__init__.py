"""`pyromq spark replay`: a lake back into topics."""
