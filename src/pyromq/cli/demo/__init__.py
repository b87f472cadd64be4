"""`pyromq demo`."""
