"""Random expressions: the compiled functions against a plain reading of the same rules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from filters import sql_reference as reference
from pyromq.errors import FilterSyntaxError
from pyromq.filters.sql92 import compile_sql
from pyromq.filters.sql_values import Incomparable, read_double, read_int


@settings(max_examples=600)
@given(reference.expressions, reference.properties)
def test_both_readings_agree(node: reference.Node, properties: dict[str, str]) -> None:
    text = reference.shown(node)
    if reference.refused(node):
        with pytest.raises(FilterSyntaxError):
            compile_sql(text)
    else:
        assert compile_sql(text).matches(properties) is reference.matches(node, properties), text


@given(reference.sensible, reference.properties)
def test_brackets_that_are_not_needed_change_nothing(node: reference.Node, properties: dict[str, str]) -> None:
    text = reference.shown(node)
    if not reference.refused(node):
        assert compile_sql(f"(({text}))").matches(properties) is compile_sql(text).matches(properties)


@pytest.mark.parametrize("text", reference.TEXTS)
def test_numbers_are_read_alike(text: str) -> None:
    for ours, kind in ((read_int, "Integer"), (read_double, "Double")):
        try:
            expected = reference.read(kind, text)
        except reference.Throws:
            with pytest.raises(Incomparable):
                ours(text)
        else:
            found = ours(text)
            assert found == expected or (math.isnan(found) and math.isnan(expected))
