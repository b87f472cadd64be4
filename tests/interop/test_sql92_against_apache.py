"""Our filters against RocketMQ's own: the same random expressions and messages, the same answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filters import sql_reference as reference
from interop.support.apache import JavaProgram, Line, toolchain
from pyromq.errors import FilterSyntaxError
from pyromq.filters.sql92 import compile_sql
from pyromq.filters.sql_tokens import KEYWORDS
from pyromq.filters.subscription import parse_tags

pytestmark = pytest.mark.interop

#: Asking costs a round trip, so each example is a batch.
many = settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))

REFUSED: Line = {"refused": True}
Case = tuple[str, dict[str, str]]


class SqlReferee(JavaProgram):
    main = "SqlReferee"

    def __init__(self) -> None:
        super().__init__(toolchain(self.main), "no name server", "no broker")

    def sql(self, cases: list[Case]) -> list[Line]:
        return self.ask("sql", cases=[{"text": text, "properties": properties} for text, properties in cases])

    def tags(self, texts: list[str]) -> list[Line]:
        return self.ask("tags", cases=[{"text": text} for text in texts])


@pytest.fixture(scope="module")
def referee() -> Iterator[SqlReferee]:
    with SqlReferee() as running:
        yield running


def ours(text: str, properties: dict[str, str]) -> Line:
    try:
        return {"matches": compile_sql(text).matches(properties)}
    except FilterSyntaxError:
        return REFUSED


def check(referee: SqlReferee, cases: list[Case]) -> None:
    answers = referee.sql(cases)
    different = [(case, answer) for case, answer in zip(cases, answers, strict=True) if ours(*case) != answer]
    assert not different


def batches(node: st.SearchStrategy[reference.Node]) -> st.SearchStrategy[list[Case]]:
    return st.lists(st.tuples(node.map(reference.shown), reference.properties), min_size=20, max_size=40)


@many
@given(cases=batches(reference.sensible))
def test_conditions_such_as_people_write(referee: SqlReferee, cases: list[Case]) -> None:
    check(referee, cases)


@many
@given(cases=batches(reference.anything))
def test_anything_the_grammar_can_say(referee: SqlReferee, cases: list[Case]) -> None:
    check(referee, cases)


NUMBERS_ALONE = ["a > 5", "a = 5", "a <= 2147483648", "a <> 9223372036854775807", "a > 5.5", "a < -5.5", "a > b"]


@many
@given(texts=st.lists(st.text("0123456789+-.eExXpPfFdDNaInfity _\t\x00\u0663\uff15\xa0", min_size=1), min_size=20))
def test_texts_are_read_as_numbers_alike(referee: SqlReferee, texts: list[str]) -> None:
    check(referee, [(condition, {"a": text, "b": "-0.0"}) for text in texts for condition in NUMBERS_ALONE])


def test_special_texts_are_read_as_numbers_alike(referee: SqlReferee) -> None:
    edges = ["0x1.8p1", "-0x.8P-2f", "0x1p99999", "0x1p-99999", "1e999999999999", "000000000000000000005", "0x1.p3d"]
    texts = [text for text in [*reference.TEXTS, *edges] if text]
    check(referee, [(condition, {"a": text, "b": "5.5"}) for text in texts for condition in NUMBERS_ALONE])
    check(referee, [("a = b", {"a": one, "b": other}) for one in texts for other in texts])
    check(referee, [("a >= b", {"a": one, "b": other}) for one in texts for other in texts])


pieces = st.sampled_from(
    [*KEYWORDS, *"=<>()+-,.*/'\n$", "<>", ">=", "--", "/* */", "''", "a", "b", "5", "5.5", "1e3", "007", "7L", "'x'"]
)


def problem_with(text: str) -> str | None:
    try:
        compile_sql(text)
    except FilterSyntaxError as refused:
        return refused.problem
    return None


@many
@given(texts=st.lists(st.lists(pieces, max_size=12).map(" ".join), min_size=20, max_size=40))
def test_word_salad(referee: SqlReferee, texts: list[str]) -> None:
    """RocketMQ accepts our expressions with the same meaning; those only it accepts have text after their end."""
    properties = {"a": "5", "b": "x"}
    for text, answer in zip(texts, referee.sql([(text, properties) for text in texts]), strict=True):
        problem = problem_with(text)
        if problem is None or answer == REFUSED:
            assert answer == ours(text, properties), text
        else:
            assert "or the end, found" in problem or "ends this text" in problem, text


def test_only_rocketmq_ignores_what_stands_behind_an_expression(referee: SqlReferee) -> None:
    """The one difference that is meant: there this matches nothing, without a word; here it is refused."""
    message = {"a": "xyz"}
    assert referee.sql([("a LIKE 'x%'", message), ("a = 'xyz' garbage", message)]) == [
        {"matches": False},
        {"matches": True},
    ]
    for text in ("a LIKE 'x%'", "a = 'xyz' garbage"):
        with pytest.raises(FilterSyntaxError):
            compile_sql(text)
    check(referee, [("a = 'xyz' -- a comment", message), ("a = 'xyz' --", message)])


@many
@given(texts=st.lists(st.text("ab*| \t\u3000ü|", max_size=12), min_size=20))
def test_tag_expressions(referee: SqlReferee, texts: list[str]) -> None:
    for text, answer in zip(texts, referee.tags(texts), strict=True):
        try:
            found = parse_tags(text)
        except FilterSyntaxError:
            assert answer == REFUSED
        else:
            assert answer["everything"] is (found.codes is None)
            assert set(answer["tags"]) == found.tags
            assert set(answer["codes"]) == (found.codes or set())
