"""Connections: a server and a client of the remoting protocol over TCP."""
