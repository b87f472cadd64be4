"""The parts of an SQL92 expression: their allowed combinations and their evaluation on a message.

Each function makes a `Term` of smaller ones, or raises `FilterSyntaxError` where RocketMQ refuses the combination. A
term's `run` takes the `get` of a message's properties and returns a value; None is SQL's unknown. It raises
`Incomparable` where RocketMQ's evaluation fails. Terms are evaluated in RocketMQ's order and no more often, because a
failure that is not reached does not count. A part is never evaluated twice, so a message costs time in proportion to
the size of the expression.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyromq.errors import FilterSyntaxError
from pyromq.filters.sql_values import READERS, Scalar, Value, compare, is_equal, negated, order

#: Evaluating and parsing take a few stack frames for each level, and Python has a thousand for everything. AND and OR
#: do not nest by being repeated, so people's expressions have less than ten levels and generated ones some more.
MAX_DEPTH = 64

Get = Callable[[str], str | None]
Run = Callable[[Get], Value]
Truth = Callable[[Get], bool | None]
Holds = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class Term:
    """One part of an expression that begins at character `at`."""

    at: int
    run: Run
    depth: int = 1
    is_boolean: bool = False
    #: A literal, to which RocketMQ applies rules that it does not apply to `-5`.
    is_literal: bool = False
    #: The name, when the part is a property.
    name: str | None = None
    #: Its value for every message, if that is constant.
    fixed: Value = None


# --- Operands ------------------------------------------------------------------------------------


def literal(at: int, value: Value) -> Term:
    """TRUE, FALSE and NULL may stand where a condition is expected, other literals may not."""
    is_boolean = value is None or isinstance(value, bool)
    return Term(at, lambda _: value, is_boolean=is_boolean, is_literal=True, fixed=value)


def property_named(at: int, name: str) -> Term:
    return Term(at, lambda get: get(name), name=name)


def negative(at: int, term: Term) -> Term:
    if term.fixed is not None:
        value = negated(term.fixed)
        return Term(at, lambda _: value, _above(at, term), fixed=value)
    run = term.run
    return Term(at, lambda get: negated(run(get)), _above(at, term))


def condition(term: Term) -> Term:
    """The part as a condition. A property alone is one by the grammar, but text is never true."""
    if term.is_boolean:
        return term
    if term.name is None:
        raise FilterSyntaxError(term.at, "expected a condition, found a value; compare it with something")
    name = term.name
    return _truth(term.at, lambda get: None if get(name) is None else False, term)


# --- Logic ---------------------------------------------------------------------------------------


def negation(at: int, term: Term) -> Term:
    inner = condition(term)
    run = inner.run

    def flipped(get: Get) -> bool | None:
        value = run(get)
        return None if value is None else not value

    return _truth(at, flipped, inner)


def all_of(terms: Sequence[Term]) -> Term:
    """AND: the first part that is false decides; unknown parts make unknown what would be true."""
    return _chain(terms, False)


def any_of(terms: Sequence[Term]) -> Term:
    """OR: the first part that is true decides; unknown parts make unknown what would be false."""
    return _chain(terms, True)


def _chain(terms: Sequence[Term], decisive: bool) -> Term:
    if len(terms) == 1:
        return terms[0]
    conditions = [condition(term) for term in terms]
    runs = tuple(term.run for term in conditions)

    def chained(get: Get) -> bool | None:
        answer: bool | None = not decisive
        for run in runs:
            value = run(get)
            if value is decisive:
                return decisive
            if value is None:
                answer = None
        return answer

    return _truth(terms[0].at, chained, *conditions)


# --- Equality ------------------------------------------------------------------------------------


def equal(left: Term, right: Term) -> Term:
    for side in (left, right):
        if side.is_literal and side.fixed is None:
            raise FilterSyntaxError(side.at, "NULL cannot be compared; write IS NULL or IS NOT NULL")
    if left.is_literal and right.is_literal and left.is_boolean and not right.is_boolean:
        raise FilterSyntaxError(right.at, "expected TRUE or FALSE to compare a truth value with")
    return _truth(left.at, _quick_equal(left, right) or _slow_equal(left, right), left, right)


def _slow_equal(left: Term, right: Term) -> Truth:
    left_run, right_run = left.run, right.run
    return lambda get: is_equal(left_run(get), right_run(get))


def _quick_equal(left: Term, right: Term) -> Truth | None:
    """The usual case, a property and a literal: nothing about the literal is found out again for each message."""
    if left.name is None or right.fixed is None:
        return None
    name, wanted = left.name, right.fixed
    if isinstance(wanted, str):
        return lambda get: None if (text := get(name)) is None else text == wanted
    read = READERS[type(wanted)]
    return lambda get: None if (text := get(name)) is None else read(text) == wanted


def is_null(term: Term) -> Term:
    run = term.run
    return _truth(term.at, lambda get: run(get) is None, term)


def is_not_null(term: Term) -> Term:
    run = term.run
    return _truth(term.at, lambda get: run(get) is not None, term)


# --- Order ---------------------------------------------------------------------------------------

ORDERS: dict[str, Holds] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def ordered(left: Term, symbol: str, right: Term) -> Term:
    """One of < <= > >=, for numbers only."""
    _check_number(left)
    _check_number(right)
    holds = ORDERS[symbol]
    return _truth(left.at, _quick_order(left, holds, right) or _slow_order(left, holds, right), left, right)


def _check_number(term: Term) -> None:
    is_number = isinstance(term.fixed, int | float) and not isinstance(term.fixed, bool)
    if term.is_boolean or (term.is_literal and not is_number):
        raise FilterSyntaxError(term.at, "expected a number or a property: only numbers are less or greater")


def _slow_order(left: Term, holds: Holds, right: Term) -> Truth:
    left_run, right_run = left.run, right.run

    def compared(get: Get) -> bool | None:
        value = left_run(get)
        return None if value is None else _holds(value, holds, right_run(get))

    return compared


def _holds(left: Scalar, holds: Holds, right: Value) -> bool | None:
    return None if right is None else holds(order(left, right), 0)


def _quick_order(left: Term, holds: Holds, right: Term) -> Truth | None:
    """A property and an integer: Python's order is Java's. It is not for doubles."""
    if left.name is None or not isinstance(right.fixed, int):
        return None
    name, bound, read = left.name, right.fixed, READERS[type(right.fixed)]
    return lambda get: None if (text := get(name)) is None else holds(read(text), bound)


def between(value: Term, low: Term, high: Term) -> Term:
    _check_numbers(value, low, high)
    if low.is_literal and high.is_literal and compare(_number(high), _number(low)) < 0:
        raise FilterSyntaxError(low.at, "expected the lower bound of BETWEEN first")
    value_run, low_run, high_run = value.run, low.run, high.run

    def within(get: Get) -> bool | None:
        found = value_run(get)
        if found is None:
            return None
        above = _holds(found, operator.ge, low_run(get))
        if above is False:
            return False
        below = _holds(found, operator.le, high_run(get))
        return above if below else below

    return _truth(value.at, within, value, low, high)


def not_between(value: Term, low: Term, high: Term) -> Term:
    """Unlike BETWEEN, RocketMQ takes the bounds in any order here."""
    _check_numbers(value, low, high)
    value_run, low_run, high_run = value.run, low.run, high.run

    def outside(get: Get) -> bool | None:
        found = value_run(get)
        if found is None:
            return None
        below = _holds(found, operator.lt, low_run(get))
        if below:
            return True
        above = _holds(found, operator.gt, high_run(get))
        return below if above is False else above

    return _truth(value.at, outside, value, low, high)


def _check_numbers(*terms: Term) -> None:
    for term in terms:
        _check_number(term)


def _number(term: Term) -> Scalar:
    assert term.fixed is not None, "checked to be a number"
    return term.fixed


# --- Text ----------------------------------------------------------------------------------------

TextTest = Callable[[str, str], bool]
TEXT_TESTS: dict[str, TextTest] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def text_test(term: Term, keyword: str, wanted: str, *, negate: bool) -> Term:
    """CONTAINS and its like, which are never unknown: without text, and for the empty text, both forms are false."""
    run, test = term.run, TEXT_TESTS[keyword]

    def tested(get: Get) -> bool:
        value = run(get)
        return isinstance(value, str) and test(value, wanted) is not negate

    return _truth(term.at, tested if wanted else lambda _: False, term)


def one_of(term: Term, texts: frozenset[str], *, negate: bool) -> Term:
    if term.name is None:
        raise FilterSyntaxError(term.at, "expected the name of a property before IN")
    name = term.name
    return _truth(term.at, lambda get: None if (text := get(name)) is None else (text in texts) is not negate, term)


# --- Depth ---------------------------------------------------------------------------------------


def _truth(at: int, run: Truth, *parts: Term) -> Term:
    return Term(at, run, _above(at, *parts), is_boolean=True)


def _above(at: int, *parts: Term) -> int:
    depth = 1 + max(part.depth for part in parts)
    check_depth(at, depth)
    return depth


def check_depth(at: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise FilterSyntaxError(at, f"it is nested more than {MAX_DEPTH} levels deep")
