"""Copies of a commit log on other machines: one stream of its bytes, and what may be believed of it.

Positions, epochs and a set of followers are the only words here. Who leads is decided elsewhere and handed in.
"""
