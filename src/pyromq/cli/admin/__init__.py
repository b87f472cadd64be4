"""Commands that look at a cluster and change it."""
