"""Histories of sends and receives, and the checker that judges them."""
