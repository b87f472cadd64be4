"""`format("pyromq-segments")`: commit-log files as a table."""
