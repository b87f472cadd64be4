"""Counters and figures of a broker."""
