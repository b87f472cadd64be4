"""`pyromq spark rebuild`: consume queues and key index from the log."""
