"""Messages on their way into the log and out of it."""
