"""Every field of a recipe is read somewhere: a field without effect would mislead its user.

A read is an attribute access ``owner.field`` whose owner has the type that the field belongs to. The type of an
expression is inferred from annotations: of arguments, of fields of dataclasses, of return types, and ``self``. Reads in
``__post_init__``, which only checks values, do not count.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs import ROOT

from duality.recipes.catalogue import _components

SOURCE = ROOT / "src" / "duality"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
CLASSES = {node.name: node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
FUNCTIONS = {
    node.name: node
    for tree in TREES.values()
    for node in tree.body
    if isinstance(node, ast.FunctionDef) and node.returns
}


def names_in(annotation: ast.expr | None) -> set[str]:
    """The classes that an annotation names: ``Training | None`` names one."""
    return (
        set()
        if annotation is None
        else {name for name in re.findall(r"\w+", ast.unparse(annotation)) if name in CLASSES}
    )


def members(name: str) -> dict[str, set[str]]:
    """Fields, properties and methods of a class and its bases, with the classes that they hold or return."""
    found: dict[str, set[str]] = {}
    node = CLASSES[name]
    for base in node.bases:
        for inherited in names_in(base) - {name}:  # a class may have the name of its base in another library
            found.update(members(inherited))
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            found[item.target.id] = names_in(item.annotation)
        elif isinstance(item, ast.FunctionDef):
            found[item.name] = names_in(item.returns)
            if item.name == "__init__":
                found.update(assigned(item))
    return found


def assigned(node: ast.FunctionDef) -> dict[str, set[str]]:
    """Attributes that ``__init__`` sets to one of its arguments."""
    arguments = {argument.arg: names_in(argument.annotation) for argument in node.args.args}
    return {
        target.attr: arguments[statement.value.id]
        for statement in ast.walk(node)
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Name)
        and statement.value.id in arguments
        for target in statement.targets
        if isinstance(target, ast.Attribute)
    }


class Reads(ast.NodeVisitor):
    """Collects (type, attribute) of every attribute access whose owner's type is known."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self.scopes: list[dict[str, set[str]]] = [{}]
        self.owner: list[str] = []

    def types(self, node: ast.expr) -> set[str]:
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in reversed(self.scopes) if node.id in scope), set())
        if isinstance(node, ast.Attribute):
            return {kind for owner in self.types(node.value) for kind in members(owner).get(node.attr, set())}
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                name = node.func.id
                return {name} if name in CLASSES else names_in(FUNCTIONS[name].returns) if name in FUNCTIONS else set()
            return self.types(node.func)
        return set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.owner.append(node.name)
        self.generic_visit(node)
        self.owner.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "__post_init__":
            return
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope = {argument.arg: names_in(argument.annotation) for argument in arguments}
        if self.owner and arguments and arguments[0].arg == "self":
            scope["self"] = {self.owner[-1]}
        self.scopes.append(scope)
        self.generic_visit(node)
        self.scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts))
            for left, right in pairs:
                if isinstance(left, ast.Name):
                    self.scopes[-1][left.id] = self.types(right)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.found |= {(kind, node.attr) for kind in self.types(node.value)}
        self.generic_visit(node)


@pytest.fixture(scope="module")
def reads() -> set[tuple[str, str]]:
    collected: set[tuple[str, str]] = set()
    for tree in TREES.values():
        visitor = Reads()
        visitor.visit(tree)
        collected |= visitor.found
    return collected


def bases_and_protocols(kind: type) -> Iterator[str]:
    """Types under which a component's fields may be read: its own, its bases, and protocols that it satisfies."""
    yield from (base.__name__ for base in kind.__mro__)
    for name, node in CLASSES.items():
        if any("Protocol" in ast.unparse(base) for base in node.bases) and set(members(name)) <= set(dir(kind)):
            yield name


@pytest.mark.parametrize("kind", _components().values(), ids=_components())
def test_every_field_is_read_on_its_own_type(kind: type, reads: set[tuple[str, str]]) -> None:
    names = set(bases_and_protocols(kind))
    for field in dataclasses.fields(kind):
        assert any((name, field.name) in reads for name in names), f"{kind.__name__}.{field.name} is never read"


def test_a_field_that_nothing_reads_is_found(reads: set[tuple[str, str]]) -> None:
    """A read of the same attribute on another type does not count."""
    assert ("Training", "clip") in reads
    assert ("Duo", "clip") not in reads
    assert ("Data", "clip") not in reads
    assert Path(SOURCE / "recipes" / "recipe.py") in TREES
