"""Replication of a commit log to other machines: one stream of its bytes, and the acknowledged and visible marks.

Its terms are positions, epochs and a set of followers. The leader is elected elsewhere and passed in.
"""
