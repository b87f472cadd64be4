"""The report as one self-contained HTML page: findings in sentences, plots and tables.

Names of topics, groups and keys come from senders and are untrusted: they are escaped. The page's policy forbids
browsers to run or load anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from pyromq.spark.jobs.insight.findings import ConsumeFacts, FailedFacts, Findings, Latency, QueueFacts, TopicFacts
from pyromq.spark.jobs.insight.scales import amount, counted, duration, moment, percent, size, times
from pyromq.spark.jobs.insight.sentences import sentences
from pyromq.spark.jobs.insight.style import STYLE
from pyromq.spark.jobs.insight.svg import (
    REST,
    Cell,
    Range,
    Series,
    TimeAxis,
    bar,
    coloured,
    heat,
    lines,
    ranges,
    sparkline,
    stacked_areas,
    text,
)

#: Topics that have a colour and a line of their own; the others are one.
MOST_TOPICS = 6
#: Lines of a table; the result tables have all.
MOST_ROWS = 12
#: Cells of one line of queues.
MOST_QUEUES = 32

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(found: Findings) -> str:
    """The whole document."""
    title = f"Insight: {found.source}"
    sections = (_volume, _topics, _queues, _tags, _latency, _consuming, _failed, _lag)
    body = "".join(section(found) for section in sections if found.total or section in (_lag, _failed))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body><main>"
        f"{_header(found)}{body}{_footer(found)}</main></body></html>"
    )


def _header(found: Findings) -> str:
    lead = "".join(f"<li>{_unbroken(text(one))}</li>" for one in sentences(found))
    span = f" · {moment(found.starts[0])} – {moment(found.starts[-1] + found.window_ms)}" if found.starts else ""
    return (
        f'<header><h1>Insight</h1><p class="source">{text(found.source + span)}</p>'
        f'<ol class="lead">{lead}</ol>{_tiles(found) if found.total else ""}</header>'
    )


def _unbroken(sentence: str) -> str:
    """A number and its unit stay on one line."""
    return re.sub(r"(?<=\d) (?=[^\W\d]{1,3}\b|%)", "\u00a0", sentence)


def _tiles(found: Findings) -> str:
    shown = [
        ("Messages", amount(found.total), f"in {counted(len(found.topics), 'topic')}"),
        ("Volume", size(found.total_bytes), f"{size(found.total_bytes / found.total)} a message"),
        ("Rate", f"{amount(found.rate)}/s", f"busiest: {amount(max(found.windows) * 1000 / found.window_ms)}/s"),
    ]
    slowest = max((one for one in found.topics if one.latency), key=lambda one: _p99(one.latency), default=None)
    if slowest is not None and slowest.latency is not None:
        shown.append(("Slowest topic, p99", duration(slowest.latency.p99), slowest.topic))
    shown.append(("Dead letters", amount(found.dead_count), counted(found.retry_count, "retry", "retries")))
    if found.lag:
        worst = max(found.lag, key=lambda one: one.last)
        shown.append(("Furthest behind", amount(worst.last), f"{worst.group} in {worst.topic}"))
    cells = (f"<div><dt>{text(a)}</dt><dd>{text(b)}<small>{text(c)}</small></dd></div>" for a, b, c in shown)
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _p99(latency: Latency | None) -> float:
    return latency.p99 if latency else 0.0


def _footer(found: Findings) -> str:
    notes = "".join(f"<li>{text(note)}</li>" for note in found.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    return (
        f"{listed}<footer>Made {text(moment(found.made_ms))} by PyroMQ from {text(found.source)}. One window is "
        f"{text(duration(found.window_ms))}. Percentiles are of ranges about 9 % wide. All times are UTC.</footer>"
    )


def _section(title: str, about: str, *cards: str) -> str:
    shown = "".join(f'<div class="card">{one}</div>' for one in cards if one)
    return f"<section><h2>{text(title)}</h2><p>{text(about)}</p>{shown}</section>" if shown else ""


def _titled(title: str, content: str) -> str:
    return f"<h3>{text(title)}</h3>{content}" if content else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Heads are text, cells are HTML. The first cell of a row is its name; `words` columns are text, others figures."""
    head = "".join(f'<th scope="col"{_left(index, words)}>{text(one)}</th>' for index, one in enumerate(heads))
    body = "".join(f"<tr>{_row(row, words)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _row(cells: Sequence[str], words: int) -> str:
    rest = "".join(_cell(one, _left(index, words)) for index, one in enumerate(cells[1:], 1))
    return f'<th scope="row">{cells[0]}</th>{rest}'


def _left(index: int, words: int) -> str:
    return ' class="left"' if index < words else ""


def _cell(content: str, marked: str) -> str:
    return (
        f'<td class="wide">{content}</td>' if content.startswith('<svg class="bar') else f"<td{marked}>{content}</td>"
    )


def _rest_of(count: int, shown: int, what: str) -> str:
    return f" The first {shown} of {count} {what}." if count > shown else ""


# --- volume ----------------------------------------------------------------------------------------------------------


def _axis(found: Findings) -> TimeAxis:
    return TimeAxis(found.starts, found.window_ms)


def _per_second(value: float) -> str:
    return f"{amount(value)}/s"


def _colours(found: Findings) -> dict[str, str]:
    return {one.topic: coloured(index) for index, one in enumerate(found.topics[:MOST_TOPICS])}


def _volume(found: Findings) -> str:
    colours, seconds = _colours(found), found.window_ms / 1000
    rates = {topic: [count / seconds for count in found.messages[topic]] for topic in colours}
    series = [Series(topic, rates[topic], colour) for topic, colour in colours.items()]
    others = [counts for topic, counts in found.messages.items() if topic not in colours]
    if others:
        summed = [sum(column) / seconds for column in zip(*others, strict=True)]
        series.append(Series(counted(len(found.topics) - len(colours), "other topic"), summed, REST))
    bytes_rates = Series("all topics", [one / seconds for one in found.bytes], "c6")
    return _section(
        "Volume",
        "When messages were stored. Point at a window to read its figures.",
        _titled("Messages a second, by topic", stacked_areas(series, _axis(found), _per_second, "messages a second")),
        _titled(
            "Bytes a second",
            stacked_areas([bytes_rates], _axis(found), lambda one: f"{size(one)}/s", "bytes a second")
            if found.bytes
            else "",
        ),
    )


def _topics(found: Findings) -> str:
    colours = _colours(found)
    rows = [_topic_row(one, found, colours.get(one.topic, REST)) for one in found.topics[:MOST_ROWS]]
    heads = ("Topic", "Messages", "Share", "", "Over time", "Bytes", "Mean size", "Stored in, p50", "p99")
    return _section(
        "Topics",
        "The largest first." + _rest_of(len(found.topics), MOST_ROWS, "topics; the table “topics” has all"),
        _table(heads, rows),
    )


def _topic_row(one: TopicFacts, found: Findings, colour: str) -> list[str]:
    share = one.messages / found.total
    spark = sparkline(found.messages[one.topic], colour) if one.topic in found.messages else ""
    p50, p99 = (duration(one.latency.p50), duration(one.latency.p99)) if one.latency else ("–", "–")
    shown = (amount(one.messages), percent(share))
    return [
        text(one.topic), *map(text, shown), bar(share, colour), spark,
        *map(text, (size(one.bytes), size(one.mean_size), p50, p99)),
    ]  # fmt: skip


def _queues(found: Findings) -> str:
    by_topic = {topic: list(queues) for topic, queues in groupby(found.queues, key=lambda one: one.topic)}
    rows = [(topic, [_queue_cell(one) for one in _busiest(queues)]) for topic, queues in by_topic.items()]
    rows = [(topic, cells) for topic, cells in rows if len(cells) > 1][:MOST_ROWS]
    return _section(
        "Queues",
        "How much each queue gets against its fair share: 1 is fair, 2 is twice as much, 0 is nothing. "
        "A hot queue has one consumer that works more than the others."
        + _some_of(max(map(len, by_topic.values()), default=0)),
        heat(rows) if rows else "",
    )


def _busiest(queues: list[QueueFacts]) -> list[QueueFacts]:
    """As many as there is room for, in their order."""
    shown = sorted(queues, key=lambda one: -one.messages)[:MOST_QUEUES]
    return [one for one in queues if one in shown] if len(queues) > MOST_QUEUES else queues


def _some_of(most: int) -> str:
    return f" Of topics with more than {MOST_QUEUES}, the busiest {MOST_QUEUES}." if most > MOST_QUEUES else ""


def _queue_cell(one: QueueFacts) -> Cell:
    words = f"{one.times_fair:.1f}" if one.times_fair < 10 else f"{one.times_fair:.0f}"
    where = f"{one.broker}, queue" if one.broker else "Queue"
    tip = f"{where} {one.queue_id}: {counted(one.messages, 'message')}, {times(one.times_fair)} its share"
    return Cell(max(one.times_fair, 0.01), words, tip)


def _tags(found: Findings) -> str:
    shown = [one for one in found.tags if one.tag][:MOST_ROWS]
    totals = {one.topic: one.messages for one in found.topics}
    colours = _colours(found)
    rows = [
        [text(one.tag), text(one.topic), text(amount(one.messages)), text(percent(one.messages / totals[one.topic])),
         bar(one.messages / totals[one.topic], colours.get(one.topic, REST)), text(size(one.bytes))]
        for one in shown
        if totals.get(one.topic)
    ]  # fmt: skip
    return _section(
        "Tags",
        "The most used ones, and their share of their topic.",
        _table(("Tag", "Topic", "Messages", "Share", "", "Bytes"), rows, words=2) if rows else "",
    )


# --- latency ---------------------------------------------------------------------------------------------------------


def _latency(found: Findings) -> str:
    known = [one for one in found.latency if one is not None]
    percentiles = [
        Series("half of all (p50)", [one.p50 if one else None for one in found.latency], "c2"),
        Series("9 in 10 (p90)", [one.p90 if one else None for one in found.latency], "c4"),
        Series("99 in 100 (p99)", [one.p99 if one else None for one in found.latency], "c1"),
    ]
    plot = lines(percentiles, _axis(found), duration, "latency over time", is_log=True) if known else ""
    colours = _colours(found)
    rows = [
        (one.topic, _topic_range(one.topic, one.latency, colours.get(one.topic, REST)))
        for one in found.topics[:MOST_ROWS]
        if one.latency
    ]
    return _section(
        "Time to be stored",
        "From the client's send to the broker's log, by their two clocks. A delayed message counts its delay.",
        _titled("All topics, over time: so many messages took at most so long", plot),
        _titled(
            "By topic: the dot is p50, the bar reaches to p99, the thin line to the longest", ranges(rows, duration)
        )
        if rows
        else "",
    )


def _topic_range(name: str, one: Latency, colour: str) -> Range:
    return Range(one.p50, one.p99, one.most, colour, f"{name}\n{_told(one)}")


def _told(one: Latency) -> str:
    named = (("p50", one.p50), ("p90", one.p90), ("p99", one.p99), ("p99.9", one.p999), ("longest", one.most))
    return "\n".join(f"{name}: {duration(value)}" for name, value in named)


def _consuming(found: Findings) -> str:
    shown = found.consuming[:MOST_ROWS]
    waits = [
        (f"{one.group} · {one.topic}", _topic_range(one.group, one.wait, coloured(index)))
        for index, one in enumerate(shown)
        if one.wait
    ]
    heads = ("Group", "Topic", "Handled", "Failed", "Wait, p50", "p99", "Handling, p50", "p99")
    return _section(
        "Time to be consumed",
        "Of messages whose clients write the message trace: how long from the send to the first handling, and how long "
        "the handling took.",
        _titled("From send to handling: dot p50, bar to p99, line to the longest", ranges(waits, duration))
        if waits
        else "",
        _table(heads, [_consume_row(one) for one in shown], words=2) if shown else "",
    )


def _consume_row(one: ConsumeFacts) -> list[str]:
    spans = [duration(value) for found in (one.wait, one.handling) if found for value in (found.p50, found.p99)]
    if one.wait is None:
        spans = ["–", "–", *spans]
    told = (one.group, one.topic, amount(one.messages), amount(one.failed), *spans, *["–"] * (4 - len(spans)))
    return [text(cell) for cell in told]


# --- failures and lag ------------------------------------------------------------------------------------------------


def _failed(found: Findings) -> str:
    retries = _failed_table(found.retries, found.made_ms)
    dead = _failed_table(found.dead, found.made_ms)
    letters = [
        [text(one.message_id), text(one.group), text(one.topic), text(one.keys or "–"), text(str(one.tries)),
         text(moment(one.at_ms))]
        for one in found.letters[:MOST_ROWS]
    ]  # fmt: skip
    heads = ("Message", "Group", "Topic", "Keys", "Tries", "Given up")
    return _section(
        "Retries and dead letters",
        "Messages that a consumer did not manage: delivered again, and given up after the last try.",
        _titled("Dead letters, by group and topic", dead),
        _titled("The newest dead letters", _table(heads, letters, words=4)) if letters else "",
        _titled("Retries, by group and topic", retries),
    )


def _failed_table(rows: Sequence[FailedFacts], now_ms: int) -> str:
    most = max((one.messages for one in rows), default=1)
    heads = ("Group", "Topic", "Messages", "", "Most tries", "Oldest", "Newest")
    cells = [
        [text(one.group), text(one.topic), text(amount(one.messages)), bar(one.messages / most, "c1"),
         text(str(one.most_tries)), text(_ago(one.oldest_ms, now_ms)), text(_ago(one.newest_ms, now_ms))]
        for one in rows[:MOST_ROWS]
    ]  # fmt: skip
    return _table(heads, cells, words=2) if cells else ""


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{duration(max(now_ms - at_ms, 0))} ago"


def _lag(found: Findings) -> str:
    worst = sorted(found.lag, key=lambda one: -one.most)[:MOST_TOPICS]
    series = [Series(f"{one.group} · {one.topic}", one.values, coloured(index)) for index, one in enumerate(worst)]
    axis = TimeAxis(found.lag_starts, found.window_ms)
    return _section(
        "Lag",
        "How many messages queries were behind, as their listener wrote it down after each batch.",
        _titled("Messages behind", lines(series, axis, amount, "messages behind", over_holes=True)) if series else "",
    )
