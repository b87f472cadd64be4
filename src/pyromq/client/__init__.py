"""Producers and consumers for programs. The public names are those of the package: `from pyromq import Producer`."""
