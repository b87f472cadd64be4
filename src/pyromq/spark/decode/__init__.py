"""Commit-log records as Arrow batches."""
