"""Views of messages: one line in lists, in full, or as JSON. Bytes that are no text are escaped."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from pyromq.cli import output
from pyromq.cli.output import escaped, moment, size, visible
from pyromq.errors import UnreadableBody

if TYPE_CHECKING:
    from pyromq.client.received import ReceivedMessage

#: Of a body in a list, of keys there, and of a body in full view.
IN_A_LINE, KEYS_IN_A_LINE, IN_FULL = 200, 24, 4000


def table_of(messages: Iterable[ReceivedMessage], width: int) -> Any:
    """A line each, as wide as the terminal: what does not fit is cut."""
    today = datetime.now().astimezone().date()
    rows = [
        (
            _stored(message, today),
            str(message.queue.queue_id),
            str(message.queue_offset),
            _cut(message.tags or "", KEYS_IN_A_LINE),
            _cut(" ".join(message.keys), KEYS_IN_A_LINE),
            visible(body_text(message)[:IN_A_LINE]),
        )
        for message in messages
    ]
    columns = ("stored", "queue", "offset", "tag", "keys", "body")
    before = sum(max(len(name), *(len(row[at]) for row in rows)) + 3 for at, name in enumerate(columns[:-1]))
    table = output.listing(*columns, numbers=("queue", "offset"))
    for *row, body in rows:
        table.add_row(*map(escaped, row), _cut(body, max(width - before - 3, 10)).replace("[", r"\["))
    return table


def _stored(message: ReceivedMessage, today: date) -> str:
    """The time, with the day where it is another one."""
    when = datetime.fromtimestamp(message.stored_at).astimezone()
    return f"{when:%H:%M:%S}.{when.microsecond // 1000:03}" if when.date() == today else f"{when:%Y-%m-%d %H:%M:%S}"


def line_of(message: ReceivedMessage) -> str:
    """Markup: place and tag, then the body."""
    tag = f" [{message.tags}]" if message.tags else ""
    place = escaped(f"queue {message.queue.queue_id} offset {message.queue_offset}{tag}")
    return f"[dim]{place}[/]  {escaped(body_text(message))}"


def facts_of(message: ReceivedMessage) -> Any:
    facts = output.facts()
    facts.add_row("message", f"[bold]{escaped(message.message_id)}[/]")
    facts.add_row("stored as", escaped(message.offset_message_id))
    queue = message.queue
    place = f"{queue.topic} queue {queue.queue_id} of {queue.broker_name}, offset {message.queue_offset}"
    facts.add_row("in", escaped(place))
    facts.add_row("tag", escaped(message.tags or "-"))
    facts.add_row("keys", escaped(", ".join(message.keys) or "-"))
    facts.add_row("made", f"{moment(int(message.born_at * 1000))} by {escaped(message.born_host)}")
    facts.add_row("stored", moment(int(message.stored_at * 1000)))
    facts.add_row("deliveries", f"{message.reconsume_times} before this one")
    for name, value in sorted(message.all_properties.items()):
        facts.add_row(f"[dim]property[/] {escaped(name)}", escaped(value))
    facts.add_row("size", f"{size(message.size)} in the log")
    return facts


def pretty_body(message: ReceivedMessage) -> list[str]:
    """The body in lines; JSON with its structure shown."""
    text = body_text(message)
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return [escaped(line) for line in _cut(text, IN_FULL).split("\n")]


def body_text(message: ReceivedMessage) -> str:
    """Return the body as text; other bytes show as `\\xff`."""
    try:
        return message.body.decode("utf-8", "surrogateescape")
    except UnreadableBody as problem:
        return f"({problem})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def json_of(message: ReceivedMessage) -> dict[str, Any]:
    """Stable keys. A body that is no text is in base64."""
    return {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "tag": message.tags,
        "keys": list(message.keys),
        "properties": dict(message.all_properties),
        "born_ms": int(message.born_at * 1000),
        "born_host": message.born_host,
        "stored_ms": int(message.stored_at * 1000),
        "reconsume_times": message.reconsume_times,
        **_body_json(message),
    }


def _body_json(message: ReceivedMessage) -> dict[str, Any]:
    try:
        body = message.body
    except UnreadableBody as problem:
        return {"body": None, "problem": str(problem)}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}
