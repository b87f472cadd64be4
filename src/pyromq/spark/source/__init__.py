"""`format("pyromq")` as a source: batches and streams."""
