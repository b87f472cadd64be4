"""Accelerated ways of servers: reading, headers, sends, pulls, the append batch, and the store's loops.

Optional: `pyromq.accelerated` loads its compiled modules, and `broker.wiring` plugs its `Accelerator` in. Without this
folder the broker runs slower, with the same answers and the same bytes on disk.
"""
