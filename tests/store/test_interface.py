"""The store's interface: other packages call its methods, and reach for its parts in a few places only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src/pyromq"
STORE = SOURCE / "store"

#: Accesses of the store's attributes from outside `store/`. Lower it when there are fewer; never raise it.
MOST_REACHES = 16
#: Public methods of the store, with those of its base class. Lower it when there are fewer; never raise it.
MOST_METHODS = 60


def store_classes() -> Iterator[ast.ClassDef]:
    for path in sorted(STORE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in ("MessageStore", "StoreViews", "StoreReader"):
                yield node


def attributes() -> set[str]:
    """The public attributes that the store's methods assign, and its properties."""
    found = set()
    for node in (node for one in store_classes() for node in ast.walk(one)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            found |= {node.attr} if node.value.id == "self" else set()
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list
        ):
            found.add(node.name)
    return {name for name in found if not name.startswith("_")}


def is_store(node: ast.expr) -> bool:
    """Return whether an expression names a store (`self._store`, `broker.store`); `config.store` is settings."""
    if isinstance(node, ast.Name):
        return node.id in ("store", "_store")
    if not isinstance(node, ast.Attribute) or node.attr not in ("store", "_store"):
        return False
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else "settings"
    return name not in ("config", "_config", "_given", "settings", "changed")


def reaches() -> list[str]:
    names = attributes()
    return [
        f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}"
        for path in sorted(SOURCE.rglob("*.py"))
        if STORE not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in names and is_store(node.value)
    ]


def test_other_packages_reach_through_the_store_in_few_places() -> None:
    found = reaches()
    assert len(found) <= MOST_REACHES, "\n".join(found)


def test_the_counter_sees_a_reach() -> None:
    assert {"log", "marks"} <= attributes()
    chain = ast.parse("self._store.log.end", mode="eval").body
    assert isinstance(chain, ast.Attribute)
    assert isinstance(chain.value, ast.Attribute)
    assert is_store(chain.value.value)
    assert not is_store(ast.parse("self._config.store", mode="eval").body)


def test_the_store_has_few_public_methods() -> None:
    methods = {
        one.name
        for cls in store_classes()
        for one in cls.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and not one.name.startswith("_")
    }
    assert len(methods) <= MOST_METHODS, sorted(methods)
