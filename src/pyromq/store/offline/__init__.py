"""Reads and checks of a store directory without its broker."""
