"""What PyroMQ is tested with, for those who build on it: the world's faults, repeatable by a seed."""

from pyromq.testing.crash_choice import CrashChoice, CrashMode
from pyromq.testing.sim_disk import PowerCut, SimDisk

__all__ = ["CrashChoice", "CrashMode", "PowerCut", "SimDisk"]
