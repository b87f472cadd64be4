"""The page: the sentences it opens with, the shapes it draws, and that no name in it can do anything."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyromq.spark.jobs.insight import svg
from pyromq.spark.jobs.insight.findings import (
    OTHERS,
    ConsumeFacts,
    DeadLetter,
    FailedFacts,
    Findings,
    LagFacts,
    Latency,
    QueueFacts,
    TagFacts,
    TopicFacts,
)
from pyromq.spark.jobs.insight.page import page
from pyromq.spark.jobs.insight.sentences import sentences

BEGIN = 1_768_003_200_000
FAST = Latency(2, 4, 18, 60, 160)
SLOW = Latency(40, 400, 4000, 9000, 60_000)
CALM = Findings(
    source="the cluster at localhost:9876",
    made_ms=BEGIN + 7_200_000,
    window_ms=60_000,
    starts=range(BEGIN, BEGIN + 600_000, 60_000),
    topics=[TopicFacts("orders", 8200, 8_200_000, FAST), TopicFacts("emails", 1800, 360_000, FAST)],
    messages={"orders": [820] * 10, "emails": [180] * 10},
    bytes=[856_000] * 10,
    latency=[FAST] * 10,
    tags=[TagFacts("orders", "created", 5000, 5_000_000), TagFacts("orders", "", 3200, 3_200_000)],
    queues=[QueueFacts("orders", "broker-a", number, 2050, 1.0) for number in range(4)],
)


# --- sentences -------------------------------------------------------------------------------------------------------


def test_a_calm_day_is_told_as_one() -> None:
    assert sentences(CALM) == [
        "orders is 82 % of the volume: 8.2 k of 10 k messages in 2 topics, 16.7 a second on average over 10 min.",
        "99 in 100 messages of every topic are stored within 18 ms of being sent.",
        "No message was retried or ended in dead letters.",
    ]


def test_what_is_worst_comes_after_the_volume() -> None:
    skewed = [QueueFacts("orders", "broker-a", number, 6000 if number == 3 else 700, 2.9) for number in range(4)]
    found = replace(
        CALM,
        queues=[replace(one, times_fair=4.0 if one.queue_id == 3 else 0.3) for one in skewed],
        dead=[FailedFacts("billing", "orders", 12, 16, BEGIN, BEGIN + 60_000)],
        retries=[FailedFacts("billing", "orders", 40, 5, BEGIN, BEGIN)],
        topics=[replace(CALM.topics[0], latency=SLOW), CALM.topics[1]],
    )
    assert sentences(found)[1:] == [
        "12 messages ended in dead letters, all of the group billing; the newest at 10 Jan 2026 00:01 UTC.",
        "Queue 3 of orders gets 4 times its share: 6 k messages.",
    ]
    assert sentences(found, count=5)[3:] == [
        "40 deliveries were retries, most of them of the group billing: some messages up to 5 times.",
        "1 in 100 messages of orders takes 4 s or more to be stored, where half take 40 ms at most.",
    ]


def test_a_query_that_falls_behind_is_told_before_one_that_catches_up() -> None:
    growing = replace(CALM, lag=[LagFacts("reports", "orders", [None, 10, 5000])])
    assert sentences(growing)[1] == "reports is 5 k messages behind in orders, as far as it ever was."
    ending = replace(CALM, lag=[LagFacts("reports", "orders", [9000, 5000, None])])
    assert sentences(ending)[1] == "reports is 5 k messages behind in orders, down from 9 k."


def test_other_things_that_need_an_eye() -> None:
    peak = replace(CALM, messages={"orders": [0] * 9 + [8200], OTHERS: [180] * 10})
    assert "The peak was 8.4 times the average: 140 a second at 10 Jan 2026 00:09 UTC." in sentences(peak)
    ahead = replace(CALM, topics=[replace(CALM.topics[0], early=100), CALM.topics[1]])
    assert sentences(ahead)[1].startswith("1 % of the messages were stored before they were born")
    failing = replace(CALM, consuming=[ConsumeFacts("mailer", "emails", 100, 30, FAST, FAST)])
    assert sentences(failing)[1] == "mailer failed at 30 % of what it handled from emails."


def test_small_numbers_are_no_skew() -> None:
    few = replace(CALM, queues=[QueueFacts("orders", "a", 0, 9, 4.0), QueueFacts("orders", "a", 1, 0, 0.0)])
    assert not any("share" in one for one in sentences(few))


def test_nothing_and_one_topic_have_sentences_too() -> None:
    nothing = Findings(source="the store /data", made_ms=0, window_ms=1000, starts=())
    assert sentences(nothing) == ["No messages were found in the store /data."]
    one = replace(CALM, topics=CALM.topics[:1])
    assert sentences(one)[0].startswith("orders is the only topic: 8.2 k messages")


# --- shapes ----------------------------------------------------------------------------------------------------------

AXIS = svg.TimeAxis([0, 1000, 2000, 3000], 1000)
NUMBERS = st.one_of(st.none(), st.floats(0, 1e15))


def points_of(drawn: str) -> list[tuple[float, float]]:
    paths = "".join(re.findall(r'class="(?:line|area) [^"]*" d="([^"]*)"', drawn))
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", paths)]


@given(st.lists(st.lists(NUMBERS, min_size=4, max_size=4), min_size=1, max_size=5), st.booleans())
@example([[None, None, None, 5e-324]], False)
def test_everything_is_drawn_inside_the_plot(rows: list[list[float | None]], is_log: bool) -> None:
    series = [svg.Series(f"s{index}", row) for index, row in enumerate(rows)]
    for drawn in (svg.stacked_areas(series, AXIS, str, "a"), svg.lines(series, AXIS, str, "b", is_log=is_log)):
        assert all(-0.1 <= x <= 1000.1 and -0.1 <= y <= 100.1 for x, y in points_of(drawn))


def test_areas_stand_on_each_other_and_hold_for_a_window() -> None:
    below, above = svg.Series("a", [1, 1, 1, 1]), svg.Series("b", [1, 2, 4, 1])
    drawn = svg.stacked_areas([below, above], AXIS, str, "")
    first, second = re.findall(r'd="(M[^"]*Z)"', drawn)
    assert first == "M0 80L250 80L250 80L500 80L500 80L750 80L750 80L1000 80" + first[first.index("L1000 100") :]
    assert second.startswith("M0 60L250 60L250 40L500 40L500 0L750 0")


def test_a_hole_in_a_line_stays_one_and_a_lone_value_is_a_dash() -> None:
    drawn = svg.lines([svg.Series("a", [1, None, 1, 1])], AXIS, str, "")
    assert 'd="M0 0h250M625 0L875 0"' in drawn


def test_a_line_may_go_on_where_nobody_looked() -> None:
    drawn = svg.lines([svg.Series("a", [1, None, None, 1])], AXIS, str, "", over_holes=True)
    assert 'd="M125 0L875 0"' in drawn
    nothing = svg.lines([svg.Series("a", [None] * 4)], AXIS, str, "", over_holes=True)
    assert 'd=""' in nothing


def test_a_window_tells_its_values_when_it_is_pointed_at() -> None:
    drawn = svg.lines([svg.Series("<a>", [1, 2, None, 4])], AXIS, lambda value: f"{value:.0f}/s", "")
    assert re.findall(r"<title>(.*?)</title>", drawn, re.DOTALL) == [
        "1 Jan\n&lt;a&gt;: 1/s", "00:00:01\n&lt;a&gt;: 2/s", "00:00:02", "00:00:03\n&lt;a&gt;: 4/s",
    ]  # fmt: skip


def test_heat_has_a_side_for_too_much_and_one_for_too_little() -> None:
    drawn = svg.heat([("orders", [svg.Cell(4, "4", ""), svg.Cell(0.25, ".25", ""), svg.Cell(1, "1", "")])])
    assert re.findall(r'class="(hot|cold)".*?fill-opacity="([\d.]+)"', drawn) == [
        ("hot", "0.85"), ("cold", "0.85"), ("cold", "0.00"),
    ]  # fmt: skip


# --- the document ----------------------------------------------------------------------------------------------------

HOSTILE = '</title><script>alert(1)</script><img src=x onerror="alert(2)">\'"&\u202e\x00'
VOID = {"meta", "br", "img", "hr"}


class Document(HTMLParser):
    """The tags and text of a page as a browser sees them, and its unclosed elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def everything(name: str) -> Findings:
    """Findings with a name wherever there is one."""
    return replace(
        CALM,
        source=name,
        topics=[TopicFacts(name, 8200, 10, SLOW, 1), TopicFacts("b", 1, 1)],
        messages={name: [820] * 10, "b": [0] * 10},
        tags=[TagFacts(name, name, 5, 5)],
        queues=[QueueFacts(name, name, number, 500, 2.0 * number) for number in range(2)],
        consuming=[ConsumeFacts(name, name, 5, 1, FAST, None), ConsumeFacts(name, name, 5, 1, None, FAST)],
        retries=[FailedFacts(name, name, 5, 3, BEGIN, BEGIN)],
        dead=[FailedFacts(name, name, 5, 16, BEGIN, BEGIN)],
        letters=[DeadLetter(name, name, name, name, 16, BEGIN)],
        lag=[LagFacts(name, name, [1] * 10), LagFacts("other", "b", [None] * 10)],
        lag_starts=CALM.starts,
        notes=[name],
    )


@pytest.mark.parametrize("found", [CALM, everything("orders"), everything(HOSTILE)], ids=["calm", "all", "hostile"])
def test_a_page_is_whole_and_needs_nothing_from_outside(found: Findings) -> None:
    written = page(found)
    document = Document(written)
    assert document.open == []
    assert not document.tags & {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    assert not {one for one in document.attributes if one.startswith("on")}
    assert not document.attributes & {"src", "href", "srcset"}
    assert not re.search(r"https?:|url\(|@import", written)
    assert "default-src 'none'" in written


@given(st.text(max_size=40))
def test_no_name_becomes_part_of_the_page(name: str) -> None:
    document = Document(page(everything(name)))
    plain = Document(page(everything("orders")))
    assert document.open == []
    assert document.tags == plain.tags
    assert document.attributes == plain.attributes


def test_hostile_names_are_shown_as_they_are() -> None:
    words = Document(page(everything(HOSTILE))).words
    assert "<script>alert(1)</script>" in words
    assert "\u202e" not in words, "what turns the direction of text would let a name lie about its neighbours"


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    words = Document(page(CALM)).words
    assert "orders is 82\u00a0% of the volume: 8.2\u00a0k of 10\u00a0k messages in 2 topics" in words
    assert "\ufffd" not in words


def test_sections_that_have_nothing_to_say_are_left_out() -> None:
    words = Document(page(CALM)).words
    assert "Volume" in words
    assert not re.search("Retries and dead letters|Time to be consumed|Lag", words)
    nothing = Document(page(Findings(source="the store", made_ms=0, window_ms=1000, starts=()))).words
    assert "No messages were found" in nothing
    assert "Volume" not in nothing


def test_many_topics_are_shown_as_a_few_and_the_rest() -> None:
    topics = [TopicFacts(f"t{number:02}", 100 - number, 1, FAST) for number in range(40)]
    shown = {one.topic: [one.messages] + [0] * 9 for one in topics[:12]} | {OTHERS: [500] + [0] * 9}
    words = Document(page(replace(CALM, topics=topics, messages=shown, queues=[], tags=[]))).words
    assert "34 other topics" in words
    assert "The first 12 of 40 topics" in words
