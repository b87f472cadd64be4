"""Topics and dates as names of directories: what Hive, Spark and Arrow read as `topic=…/date=…`.

Topics may have `%` and `|` in their names, and names of groups stand in those of retry topics. Everything but letters,
digits, `-`, `_` and `.` is written as `%` and two hex digits for each byte, so no topic leaves its directory, and no
two topics share one. The directory begins with `topic=`, so a leading `_` or `.` of the topic hides nothing.
"""

from __future__ import annotations

from urllib.parse import quote

#: Hive's name for the partition of null: a topic of that name is escaped.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def escaped(value: str) -> str:
    if value == NO_VALUE:
        return "%5F" + value[1:]
    return quote(value, safe="").replace("~", "%7E")


def directory_of(topic: str, date: str) -> str:
    """Return the directory of a topic and day, relative to the lake."""
    return f"topic={escaped(topic)}/date={date}"
