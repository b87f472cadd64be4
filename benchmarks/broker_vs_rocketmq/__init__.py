"""PyroMQ and Apache RocketMQ under the same load on one machine, one after the other, alternating.

`python -m broker_vs_rocketmq`, with `benchmarks` and `tests` on the path: `make bench-broker` does that.
"""
