"""`pyromq spark audit`: checks of stores and backups."""
