"""The commit log and its segments."""
