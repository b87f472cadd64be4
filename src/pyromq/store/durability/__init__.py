"""Flush, checkpoint, recover points: what makes appended bytes durable."""
