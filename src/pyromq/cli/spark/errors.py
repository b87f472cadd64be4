"""Turns errors of Spark into one sentence. Pure.

An error that a Python worker raises reaches the driver inside pages of Java: who failed where, the whole traceback, and
all of it again as the cause. Somewhere in there is the line that was written for people.
"""

from __future__ import annotations

import re

#: The last line of a traceback: the error's type and what it says.
_RAISED = re.compile(r"^(?P<kind>(?:[a-z_]\w*\.)*[A-Z]\w*): (?P<text>\S.*)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
#: Between an error and the one that came of it.
_GOES_ON = re.compile(r"direct cause of the following exception|another exception occurred")
#: `[SOME_CONDITION.DETAIL] Sentence. SQLSTATE: 42K03`: what Spark says of its own errors.
_CONDITION = re.compile(r"\[(?P<name>[A-Z_0-9.]+)\] (?P<text>.+?)(?: ?SQLSTATE: ?\w+)?$")
_JAVA_TYPE = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)?: ")

NOT_FOUND = "DATA_SOURCE_NOT_FOUND"
OURS = "pyromq.errors."


def sentence_of(text: str) -> str:
    """The one that says most: an error of ours, else what Python raised, else the first line of Spark's."""
    raised = _raised(text) if _TRACEBACK in text else []
    ours = [found["text"] for found in raised if found["kind"].startswith(OURS)]
    if ours:
        return _one_line(ours[0])
    if raised:
        return _one_line(f"{raised[0]['kind']}: {raised[0]['text']}")
    return _of_spark(text)


def _one_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _raised(text: str) -> list[re.Match[str]]:
    """Return the last line of each traceback."""
    found = list(_RAISED.finditer(text, text.index(_TRACEBACK)))
    ends = [*(one.start() for one in found), len(text)]
    return [one for one, end in zip(found, ends[1:], strict=True) if not _GOES_ON.search(text, one.end(), end)]


def _of_spark(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = _JAVA_TYPE.sub("", lines[0]) if lines else "Spark gave up and did not say why"
    found = _CONDITION.search(first)
    if found is None:
        return first
    if found["name"].startswith(NOT_FOUND):
        return f"{found['text']} Is PyroMQ installed in the Python that PYSPARK_PYTHON names?"
    return found["text"]
