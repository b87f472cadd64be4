"""Topics, groups, clients, offsets and locks of a broker."""
