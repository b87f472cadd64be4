"""Brokers started for tests: in this process or as programs."""
