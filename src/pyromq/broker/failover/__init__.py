"""Roles, members, fencing and replication of a broker group."""
