"""A second, plain reading of RocketMQ's SQL92, and random expressions to hold the real one against.

Expressions are nested tuples. `shown` prints one with no more brackets than the grammar needs, `refused` says whether
RocketMQ would take it, `matches` walks it for every message. Nothing here is shared with the package.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st

Node = tuple[Any, ...]
Properties = Mapping[str, str]


class Java(NamedTuple):
    """A value with its Java class."""

    type: str
    value: Any


class Throws(Exception):
    """The evaluation fails."""


# --- Printing ------------------------------------------------------------------------------------

OR, AND, EQUALITY, COMPARISON, UNARY, OPERAND = range(6)
LEVELS = {
    "or": OR,
    "and": AND,
    **dict.fromkeys(["=", "<>", "is null", "is not null"], EQUALITY),
    **dict.fromkeys([">", ">=", "<", "<=", "between", "text", "in"], COMPARISON),
    **dict.fromkeys(["-", "+", "not"], UNARY),
    **dict.fromkeys(["property", "string", "number", "word"], OPERAND),
}


def shown(node: Node, level: int = OR) -> str:
    text = _bare(node)
    return text if LEVELS[node[0]] >= level else f"({text})"


def _bare(node: Node) -> str:
    match node:
        case ("string", text):
            return quoted(text)
        case ("property" | "number" | "word", text):
            return str(text)
        case ("-" | "+" | "not" as symbol, inner):
            return f"{symbol} {shown(inner, UNARY)}"
        case ("is null" | "is not null" as words, left):
            return f"{shown(left, EQUALITY)} {words}"
        case ("between", negate, left, low, high):
            bounds = f"{shown(low, UNARY)} AND {shown(high, UNARY)}"
            return f"{shown(left, COMPARISON)} {'NOT ' * negate}BETWEEN {bounds}"
        case ("text", keyword, negate, left, wanted):
            return f"{shown(left, COMPARISON)} {'NOT ' * negate}{keyword} {quoted(wanted)}"
        case ("in", negate, left, texts):
            return f"{shown(left, COMPARISON)} {'NOT ' * negate}IN ({', '.join(map(quoted, texts))})"
    symbol, left, right = node
    return f"{shown(left, LEVELS[symbol])} {symbol} {shown(right, LEVELS[symbol] + 1)}"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# --- Refused expressions ---------------------------------------------------------------------------

CONDITIONS = {"or", "and", "=", "<>", "is null", "is not null", ">", ">=", "<", "<=", "between", "text", "in", "not"}


def plain(node: Node) -> Node:
    """A plus sign leaves no trace."""
    return plain(node[1]) if node[0] == "+" else node


def is_condition(node: Node) -> bool:
    return plain(node)[0] in CONDITIONS or plain(node)[0] == "word"


def is_literal(node: Node) -> bool:
    return plain(node)[0] in ("string", "number", "word")


def serves_as_condition(node: Node) -> bool:
    return is_condition(node) or plain(node)[0] == "property"


def may_be_ordered(node: Node) -> bool:
    return not is_condition(node) and plain(node)[0] != "string"


def refused(node: Node) -> bool:
    """Return True if RocketMQ does not compile the expression or a part of it."""
    return not serves_as_condition(node) or _part_refused(node)


def _part_refused(node: Node) -> bool:
    if any(_part_refused(inner) for inner in node[1:] if isinstance(inner, tuple)):
        return True
    match node:
        case ("number", text):
            return "." in text and not 0 < float(text) < math.inf
        case ("or" | "and", left, right):
            return not (serves_as_condition(left) and serves_as_condition(right))
        case ("not", inner):
            return not serves_as_condition(inner)
        case ("=" | "<>", left, right):
            return _equality_refused(plain(left), plain(right))
        case (">" | ">=" | "<" | "<=", left, right):
            return not (may_be_ordered(left) and may_be_ordered(right))
        case ("between", negate, left, low, high):
            if not all(map(may_be_ordered, (left, low, high))):
                return True
            bounds = not negate and is_literal(low) and is_literal(high)
            return bounds and difference(evaluated(high, {}), evaluated(low, {})) < 0
        case ("in", _, left, _):
            return plain(left)[0] != "property"
    return False


def _equality_refused(left: Node, right: Node) -> bool:
    if ("word", "NULL") in (left, right):
        return True
    return left[0] == "word" and is_literal(right) and right[0] != "word"


# --- What it means -------------------------------------------------------------------------------


def matches(node: Node, properties: Properties) -> bool:
    try:
        return as_condition(node, properties) is True
    except Throws:
        return False


def as_condition(node: Node, properties: Properties) -> bool | None:
    found = evaluated(node, properties)
    if found is None or found.type == "Boolean":
        return found and found.value
    return False


def evaluated(node: Node, properties: Properties) -> Java | None:
    match node:
        case ("property", name):
            return Java("String", properties[name]) if name in properties else None
        case ("string", text):
            return Java("String", text)
        case ("number", text):
            return number(text)
        case ("word", word):
            return None if word == "NULL" else Java("Boolean", word == "TRUE")
        case ("+", inner):
            return evaluated(inner, properties)
        case ("-", inner):
            found = evaluated(inner, properties)
            return found._replace(value=-found.value) if found and found.type not in ("String", "Boolean") else None
    answer = truth(node, properties)
    return None if answer is None else Java("Boolean", answer)


def truth(node: Node, properties: Properties) -> bool | None:
    match node:
        case ("not", inner):
            return opposite(as_condition(inner, properties))
        case ("or", left, right):
            return opposite(truth(("and", ("not", left), ("not", right)), properties))
        case ("and", left, right):
            first = as_condition(left, properties)
            if first is False:
                return False
            second = as_condition(right, properties)
            return False if second is False else (True if first and second else None)
        case ("=", left, right):
            return equal(evaluated(left, properties), evaluated(right, properties))
        case ("<>", left, right):
            return opposite(truth(("=", left, right), properties))
        case ("is null" | "is not null" as words, inner):
            return (evaluated(inner, properties) is None) == (words == "is null")
        case ("between", False, value, low, high):
            return truth(("and", (">=", value, low), ("<=", value, high)), properties)
        case ("between", True, value, low, high):
            return truth(("or", ("<", value, low), (">", value, high)), properties)
        case ("text", keyword, negate, inner, wanted):
            return text_test(keyword, negate, evaluated(inner, properties) if wanted else None, wanted)
        case ("in", negate, inner, texts):
            found = evaluated(inner, properties)
            return None if found is None else (found.value in texts) != negate
    symbol, left, right = node
    first_value = evaluated(left, properties)
    second_value = None if first_value is None else evaluated(right, properties)
    return None if first_value is None or second_value is None else ordered(symbol, first_value, second_value)


def opposite(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def equal(left: Java | None, right: Java | None) -> bool | None:
    if left is None and right is None:
        return True
    if left is None:
        return None
    return right is not None and (left == right or difference(left, right) == 0)


def ordered(symbol: str, left: Java, right: Java) -> bool:
    if left.type == right.type == "String":
        left, right = (Java("Double", read("Double", side.value)) for side in (left, right))
    gap = difference(left, right)
    return {">": gap > 0, ">=": gap >= 0, "<": gap < 0, "<=": gap <= 0}[symbol]


def text_test(keyword: str, negate: bool, found: Java | None, wanted: str) -> bool:
    if found is None or found.type != "String":
        return False
    at = {"CONTAINS": found.value.find(wanted) >= 0, "STARTSWITH": found.value[: len(wanted)] == wanted}
    return at.get(keyword, found.value[-len(wanted) :] == wanted) != negate


WIDTH = {"Integer": 1, "Long": 2, "Double": 3}


def difference(left: Java | None, right: Java | None) -> int:
    assert left is not None
    assert right is not None
    kinds = {left.type, right.type}
    if left.type == "Boolean" and right.type == "String":
        raise Throws
    if kinds == {"String"}:
        return 0 if left.value == right.value else 1
    if "String" in kinds:
        [kind] = kinds - {"String"}
        left, right = (Java(kind, read(kind, side.value)) if side.type == "String" else side for side in (left, right))
    elif "Boolean" in kinds and len(kinds) == 2:
        return -1
    elif "Double" in kinds:
        left, right = Java("Double", float(left.value)), Java("Double", float(right.value))
    low, high = rank(left.value), rank(right.value)
    return (low > high) - (low < high)


def rank(value: Any) -> tuple[bool, Any, float]:
    """Java's order of doubles as Python's order of tuples."""
    if isinstance(value, float) and math.isnan(value):
        return (True, 0, 0)
    return (False, value, math.copysign(1, value))


def number(text: str) -> Java:
    if "." in text or "e" in text.lower():
        return Java("Double", float(text))
    value = int(text.rstrip("lL"))
    return Java("Integer" if value < 2**31 else "Long", value)


def read(kind: str, text: str) -> Any:
    if kind == "Boolean":
        return text.casefold() == "true"
    if kind == "Double":
        return read_double(text)
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not all(unicodedata.category(digit) == "Nd" and ord(digit) < 2**16 for digit in digits):
        raise Throws
    value = int("".join(str(unicodedata.decimal(digit)) for digit in digits)) * (-1 if text[0] == "-" else 1)
    bits = 32 if kind == "Integer" else 64
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise Throws
    return value


def read_double(text: str) -> float:
    while text and text[0] <= " ":
        text = text[1:]
    while text and text[-1] <= " ":
        text = text[:-1]
    if text.lstrip("+-") in ("NaN", "Infinity") and len(text) - len(text.lstrip("+-")) < 2:
        return float(text)
    if text[-1:] in ("f", "F", "d", "D"):
        text = text[:-1]
    if not text.isascii() or not set(text.lower()) <= set("0123456789abcdefxp+-."):
        raise Throws
    try:
        return float.fromhex(text) if "p" in text.lower() and "x" in text.lower() else float(text)
    except ValueError:
        raise Throws from None


# --- Random expressions --------------------------------------------------------------------------

NAMES = ["a", "b", "$c_1", "TAGS"]
TEXTS = [
    "", "x", "xyx", "it's", "true", "TRUE", "False", "0", "5", "+5", "-5", "05", "5.0", "5.5", " 5", "5 ", "5f", ".5d",
    "1e3", "1E400", "NaN", "-NaN", "Infinity", "-Infinity", "inf", "nan", "0x1p4", "0x10", "-0.0", "0.0", "1_000", "-",
    "2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "9007199254740993", "９", "٣", "𝟗", "über",
]  # fmt: skip
NUMBERS = [
    "0", "5", "7L", "12", "1000", "2147483647", "2147483648", "9223372036854775807", "9007199254740993",
    "5.0", "5.", ".5", "5.5", "1.e3", "1e3", "5E-1", "9007199254740992.0", "0.0", "1.e400",
]  # fmt: skip

properties = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([text for text in TEXTS if text]), max_size=4)
texts = st.sampled_from(TEXTS)
operands: st.SearchStrategy[Node] = st.one_of(
    st.tuples(st.just("property"), st.sampled_from(NAMES)),
    st.tuples(st.just("number"), st.sampled_from(NUMBERS)),
    st.tuples(st.just("string"), texts),
    st.tuples(st.just("word"), st.sampled_from(["TRUE", "FALSE", "NULL"])),
)
names: st.SearchStrategy[Node] = st.tuples(st.just("property"), st.sampled_from(NAMES))
numbers: st.SearchStrategy[Node] = st.tuples(st.just("number"), st.sampled_from(NUMBERS))
bounds = numbers | st.tuples(st.just("-"), numbers) | names


def _comparisons(values: st.SearchStrategy[Node], limits: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    keywords = st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])
    return st.one_of(
        st.tuples(st.sampled_from(["=", "<>"]), values, values),
        st.tuples(st.sampled_from([">", ">=", "<", "<="]), limits, limits),
        st.tuples(st.sampled_from(["is null", "is not null"]), values),
        st.tuples(st.just("between"), st.booleans(), limits, limits, limits),
        st.tuples(st.just("text"), keywords, st.booleans(), values, texts),
        st.tuples(st.just("in"), st.booleans(), values, st.lists(texts, min_size=1, max_size=6)),
    )


def _logic(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.sampled_from(["not", "-", "+"]), inner),
        _comparisons(inner, inner),
    )


#: Conditions such as people write, joined by AND, OR and NOT: nearly all of them compile.
sensible: st.SearchStrategy[Node] = st.recursive(
    _comparisons(names | operands, bounds) | names,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["=", "<>"]), names | inner, inner),
        st.tuples(st.sampled_from(["is null", "is not null"]), inner),
    ),
    max_leaves=6,
)
#: Anything the grammar can say: most of them are refused for what they combine.
anything: st.SearchStrategy[Node] = st.recursive(operands, _logic, max_leaves=6)
expressions = sensible | anything
