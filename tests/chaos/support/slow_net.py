"""A program that holds packets for a while before they go on, and loses some: what a long or bad line does.

    python slow_net.py

Makes a device, says its name, and gives every packet that is routed into it back to the router later. Each line on
stdin is `DELAY JITTER LOSS`: seconds, seconds, and a share of all. It ends when stdin does.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

DEVICE = b"slow0"
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
LARGEST = 65_536
#: What a line of so much data holds; the rest is lost, as everywhere.
MOST_HELD = 20_000


def main() -> None:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE, IFF_TUN | IFF_NO_PI))
    os.write(1, DEVICE + b"\n")
    delay, jitter, loss = 0.0, 0.0, 0.0
    held: list[tuple[float, int, bytes]] = []
    number = 0
    while True:
        pause = max(held[0][0] - time.monotonic(), 0) if held else None
        ready, _, _ = select.select([device, 0], [], [], pause)
        if 0 in ready:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            delay, jitter, loss = map(float, line.split())
        if device in ready:
            packet = os.read(device, LARGEST)
            if random.random() >= loss and len(held) < MOST_HELD:
                number += 1
                heapq.heappush(held, (time.monotonic() + delay + random.uniform(0, jitter), number, packet))
        while held and held[0][0] <= time.monotonic():
            os.write(device, heapq.heappop(held)[2])


if __name__ == "__main__":
    main()
