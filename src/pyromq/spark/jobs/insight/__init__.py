"""`pyromq spark insight`: a report about topics."""
