"""What copies cost: a master and a slave of PyroMQ, and a pair of Apache RocketMQ set up alike, in turn in one run.

`python -m replication_vs_rocketmq`, with `benchmarks` and `tests` on the path: `make bench-replication` does that.
"""
