"""What programs use to send and receive. The public names are those of the package: `from pyromq import Producer`."""
