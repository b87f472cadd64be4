"""`format("pyromq")` as a sink: frames and streams written to topics."""
