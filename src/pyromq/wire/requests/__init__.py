"""Requests and their fields, by subject."""
