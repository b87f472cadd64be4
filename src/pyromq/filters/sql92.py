"""Subscribing by SQL92: conditions on the properties of a message, as RocketMQ understands them.

    or         := and (OR and)*
    and        := equality (AND equality)*
    equality   := comparison ("=" comparison | "<>" comparison | IS [NOT] NULL)*
    comparison := unary ((">" | ">=" | "<" | "<=") unary
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text
                        | [NOT] BETWEEN unary AND unary
                        | [NOT] IN "(" text ("," text)* ")")*
    unary      := ("+" | "-" | NOT) unary | literal | property | "(" or ")"

Note how tightly NOT binds: `NOT a = 1` is `(NOT a) = 1`, which is never true; write `NOT (a = 1)` or `a <> 1`.

`compile_sql` turns text into functions once, and refuses what RocketMQ refuses, and two things more. RocketMQ stops
reading where an expression could end and ignores the rest, so that `a LIKE 'x%'` silently matches nothing: here it is
an error (except a comment). And there are limits, so that no expression overflows the stack or takes long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyromq.errors import FilterSyntaxError
from pyromq.filters import sql_terms as terms
from pyromq.filters.sql_terms import Run, Term
from pyromq.filters.sql_tokens import Token, next_token, unquoted
from pyromq.filters.sql_values import INT_MAX, LONG_MAX, Incomparable, Long

#: In characters. Enough for a list of thousands of names; it is parsed in some hundredths of a second.
MAX_LENGTH = 65_536
#: Operands and operators. In the worst case a message is held against every one of them, which takes less than a
#: microsecond each, so a thousandth of a second in all. The texts of an IN do not count: they are looked up, not tried
#: in turn.
MAX_NODES = 1024

#: Characters of the text that an error repeats.
_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """An expression that is ready to be asked. Equal texts make equal filters."""

    text: str
    _run: Run = field(compare=False, repr=False)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return True if the expression is true; an unknown value or a failed comparison does not match."""
        try:
            return self._run(properties.get) is True
        except Incomparable:
            return False

    @property
    def tag_codes(self) -> frozenset[int] | None:
        return None

    @property
    def needs_properties(self) -> bool:
        return True

    def matches_properties(self, properties: Mapping[str, str]) -> bool:
        return self.matches(properties)


def compile_sql(text: str) -> SqlFilter:
    """Return the filter of an expression. Raises FilterSyntaxError with the position and the expected token."""
    if len(text) > MAX_LENGTH:
        raise FilterSyntaxError(MAX_LENGTH, f"it is longer than {MAX_LENGTH} characters")
    return SqlFilter(text, _Parser(text).whole().run)


class _Parser:
    """Recursive descent with one token of lookahead; a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._nodes = 0
        self._depth = 0
        self._next = next_token(text, 0)

    def whole(self) -> Term:
        term = terms.condition(self._or())
        if self._next.kind != "end" and not self._text.startswith("--", self._next.at):
            raise self._unexpected(_END_HINTS.get(self._next.text.upper(), "AND, OR or the end"))
        return term

    def _or(self) -> Term:
        parts = [self._and()]
        while self._take("OR"):
            parts.append(self._and())
        return terms.any_of(parts)

    def _and(self) -> Term:
        parts = [self._equality()]
        while self._take("AND"):
            parts.append(self._equality())
        return terms.all_of(parts)

    def _equality(self) -> Term:
        left = self._comparison()
        while True:
            if self._take("="):
                left = terms.equal(left, self._comparison())
            elif self._take("<>"):
                left = terms.negation(left.at, terms.equal(left, self._comparison()))
            elif self._take("IS"):
                is_not = self._take("NOT")
                self._expect("NULL", "NULL" if is_not else "NULL or NOT NULL")
                left = terms.is_not_null(left) if is_not else terms.is_null(left)
            else:
                return left
            self._count_node()

    def _comparison(self) -> Term:
        left = self._unary()
        while self._next.kind in terms.ORDERS or self._next.kind in _AFTER_NOT or self._next.kind == "NOT":
            operator = self._advance().kind
            self._count_node()
            if operator in terms.ORDERS:
                left = terms.ordered(left, operator, self._unary())
            elif operator == "NOT":
                left = self._keyword_test(left, self._expect_one_of(_AFTER_NOT), negate=True)
            else:
                left = self._keyword_test(left, operator, negate=False)
        return left

    def _keyword_test(self, left: Term, keyword: str, *, negate: bool) -> Term:
        if keyword == "BETWEEN":
            low = self._unary()
            self._expect("AND", "AND and the upper bound")
            return (terms.not_between if negate else terms.between)(left, low, self._unary())
        if keyword == "IN":
            return terms.one_of(left, self._texts(), negate=negate)
        return terms.text_test(left, keyword, self._quoted(), negate=negate)

    def _texts(self) -> frozenset[str]:
        self._expect("(", "( and a list of texts")
        found = {self._quoted()}
        while self._take(","):
            found.add(self._quoted())
        self._expect(")", "a comma or )")
        return frozenset(found)

    def _quoted(self) -> str:
        return unquoted(self._expect("text", "text between single quotes").text)

    def _unary(self) -> Term:
        """Signs, NOT and brackets are the ways to nest: each goes through here."""
        self._depth += 1
        terms.check_depth(self._next.at, self._depth)
        self._count_node()
        token = self._advance()
        match token.kind:
            case "+":
                term = self._unary()
            case "-":
                term = terms.negative(token.at, self._unary())
            case "NOT":
                term = terms.negation(token.at, self._unary())
            case "(":
                term = self._or()
                self._expect(")", ") or an operator")
            case _:
                term = _operand(token)
        self._depth -= 1
        return term

    def _count_node(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise FilterSyntaxError(self._next.at, f"it has more than {MAX_NODES} operands and operators")

    def _advance(self) -> Token:
        token = self._next
        self._next = next_token(self._text, token.end)
        return token

    def _take(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str, what: str) -> Token:
        if self._next.kind != kind:
            raise self._unexpected(what)
        return self._advance()

    def _expect_one_of(self, kinds: tuple[str, ...]) -> str:
        if self._next.kind not in kinds:
            raise self._unexpected(", ".join(kinds))
        return self._advance().kind

    def _unexpected(self, what: str) -> FilterSyntaxError:
        return _expected(what, self._next)


_AFTER_NOT = (*terms.TEXT_TESTS, "BETWEEN", "IN")
_WORDS = {"TRUE": True, "FALSE": False, "NULL": None}
_END_HINTS = {"LIKE": "CONTAINS, STARTSWITH or ENDSWITH (there is no LIKE)"}


def _operand(token: Token) -> Term:
    match token.kind:
        case "name":
            return terms.property_named(token.at, token.text)
        case "text":
            return terms.literal(token.at, unquoted(token.text))
        case "decimal":
            return terms.literal(token.at, _integer(token))
        case "float":
            return terms.literal(token.at, _double(token))
        case "TRUE" | "FALSE" | "NULL":
            return terms.literal(token.at, _WORDS[token.kind])
    raise _expected("a property, a value, NOT or (", token)


def _expected(what: str, token: Token) -> FilterSyntaxError:
    found = "the end" if token.kind == "end" else token.text[:_SHOWN_CHARS]
    return FilterSyntaxError(token.at, f"expected {what}, found {found}")


def _integer(token: Token) -> int:
    """32 bits when it fits, as the kind decides how properties are read; a sign is not part of the number."""
    digits = token.text.rstrip("lL")
    if len(digits) > len(str(LONG_MAX)) or (value := int(digits)) > LONG_MAX:
        raise FilterSyntaxError(token.at, f"expected a number up to {LONG_MAX}, found {token.text[:_SHOWN_CHARS]}")
    return value if value <= INT_MAX else Long(value)


def _double(token: Token) -> float:
    """RocketMQ takes no zero with a point: it asks for more than the smallest positive double."""
    value = float(token.text)
    if not 0 < value < float("inf"):
        raise FilterSyntaxError(
            token.at,
            f"expected a number between 4.9E-324 and 1.8E308 (zero is written 0), found {token.text[:_SHOWN_CHARS]}",
        )
    return value
