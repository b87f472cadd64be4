"""Requests of administrators, a module for each subject."""
