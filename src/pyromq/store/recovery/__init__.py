"""From files on disk to an open store."""
