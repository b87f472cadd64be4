"""The log of a server: one line per event on stderr, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum

from pyromq.cli.output import visible
from pyromq.cli.servers.log_floods import NoFloods


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def start_logging(level: LogLevel, form: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form is LogFormat.JSON else _Text())
    handler.addFilter(NoFloods())
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)  # Python's own have several lines each


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


#: A line may name what a client sent, and that may be as long as a frame.
MAX_MESSAGE = 2000


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]} …"


class _Text(logging.Formatter):
    """`time level part: sentence`, on one line whatever the message holds; only a fault of ours has a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        part = record.name.removeprefix("pyromq.")
        line = f"{_time(record)} {record.levelname:<8} {part}: {visible(_message(record))}"
        if record.exc_info and record.exc_info[1] is not None:
            line += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        return line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("pyromq."),
            "message": _message(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            event["trace"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(event)
