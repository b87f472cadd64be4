"""PyroMQ's Python client and broker beside what a Python team would pick instead, under the same work on one machine.

`python -m client_vs_peers`, with `benchmarks` and `tests` on the path: `make bench-client` does that.
"""
