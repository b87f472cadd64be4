"""`pyromq spark archive`: topics into a lake."""
