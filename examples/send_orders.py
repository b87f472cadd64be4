"""Sends orders as JSON to the topic `orders`, for the other examples: python examples/send_orders.py [how many]"""

from __future__ import annotations

import json
import os
import sys

from pyromq.sync import Producer

NAMESRV = os.environ.get("PYROMQ_NAMESRV", "localhost:9876")
ITEMS = ("tea", "coffee", "kettle", "grinder", "espresso machine")
PRICES = (4.5, 7.0, 39.0, 120.0, 890.0)


def order(number: int) -> dict[str, object]:
    kind = number * 7 % len(ITEMS)
    return {"id": number, "item": ITEMS[kind], "price": PRICES[kind], "country": ("de", "fr", "jp")[number % 3]}


def main(count: int) -> None:
    with Producer(NAMESRV, group="examples") as producer:
        for number in range(count):
            body = json.dumps(order(number)).encode()
            producer.send("orders", body, tags="paid" if number % 4 else "open", keys=[f"order-{number}"])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
