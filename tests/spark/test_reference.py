"""Every option of the formats is explained in the reference, and nothing is explained that is not there."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest

from pages import ROOT
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.segments import options
from pyromq.spark.sink.columns import NAMES as WRITTEN
from pyromq.spark.sink.options import SINK
from pyromq.spark.source.options import CONNECTION, SOURCE

REFERENCE = (ROOT / "docs" / "reference" / "spark.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guides" / "spark.md").read_text(encoding="utf-8")


def explained(page: str, title: str) -> set[str]:
    """The names in the first column of the tables below a heading."""
    part = re.split(r"^#+ ", page.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`[^|]+) \|", part, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("The cluster", CONNECTION),
        ("Reading topics", set(SOURCE) - set(CONNECTION)),
        ("Writing topics", set(SINK) - set(CONNECTION)),
        # Spark makes `paths` of a list; `subscribe` is a second name.
        ("Reading files", set(options.KNOWN) - {"paths", "subscribe"}),
    ],
)
def test_the_reference_has_every_option(title: str, names: Collection[str]) -> None:
    assert explained(REFERENCE, title) == set(names)


@pytest.mark.parametrize(("title", "names"), [("Columns", NAMES), ("Writing", WRITTEN)])
def test_the_guide_has_every_column(title: str, names: Collection[str]) -> None:
    assert explained(GUIDE, title) - {"mode"} >= set(names)
