"""The storage engine: one sequential commit log, and the queues and key index derived from it."""
