"""Simulated disks, networks and replicas."""
