"""Consume queues, derived from the commit log."""
