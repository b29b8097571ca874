"""Recipes are equal after a round trip through JSON; --set is typed, has helpful errors and any order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs import ROOT

from duality.models.size import describe
from duality.networks import SIZES
from duality.recipes.catalogue import (
    _NAMED,
    _components,
    differences,
    from_json,
    modify,
    recipe,
    recipe_names,
    to_json,
)
from duality.recipes.config import from_jsonable, to_jsonable

SOURCE = ROOT / "src" / "duality"


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_round_trip_through_json(name: str) -> None:
    chosen = recipe(name)
    assert chosen.name == name
    assert from_json(json.loads(json.dumps(to_json(chosen)))) == chosen


@pytest.mark.parametrize("name", [name for registry in _NAMED for name in registry])
def test_every_named_component_round_trips(name: str) -> None:
    component = next(registry[name] for registry in _NAMED if name in registry)()
    assert from_jsonable(json.loads(json.dumps(to_jsonable(component))), _components()) == component


def test_assignments() -> None:
    chosen = recipe(
        "duo-laptop",
        (
            "training.steps=7",
            "training.learning_rate=1",
            "training.betas=[0.8, 0.9]",
            "backbone=mini",
            "data.tokenizer=characters",
            "data.split=document",
            "method.gaussian_schedule=LinearSignal",
        ),
    )
    assert (chosen.training.steps, chosen.training.learning_rate, chosen.training.betas) == (7, 1.0, (0.8, 0.9))
    assert chosen.backbone == SIZES["mini"]()
    assert type(chosen.data.tokenizer).__name__ == "Characters"
    assert chosen.data.split == "document"
    lines = differences(recipe("duo-laptop"), chosen)
    assert any(line.startswith("training.steps: ") and line.endswith(" -> 7") for line in lines)


def test_dependent_assignments_are_checked_together() -> None:
    for order in (("backbone.width=96", "backbone.heads=3"), ("backbone.heads=3", "backbone.width=96")):
        assert recipe("duo-laptop", order).backbone == replace(SIZES["micro"](), width=96, heads=3)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.stepz=3", r"no field 'training.stepz' \(Training has no 'stepz'\): did you mean steps"),
        ("trainig.steps=3", "did you mean training"),
        ("training.steps=many", "training.steps is 'many': it must be a whole number"),
        ("training.steps=1.5", "whole number"),
        ("training.steps=true", "whole number"),
        ("training.steps=0", "training.steps is 0: it must be at least 1"),
        ("training.betas=[0.9]", "a list of 2"),
        ("training.precision=float16", "'auto', 'float32', 'tf32', 'bfloat16'"),
        ("backbone=huge", "choose from nano, micro, mini, small, medium"),
        ("data.tokenizer=wordpiece", "choose from bytes, characters, bpe"),
        ("data.split=random", "'auto', 'document', 'position'"),
        ("data.padding=mask", "'model', 'light', 'ignore'"),
        ("data.documents=words", "'auto', 'lines'"),
        ("training.steps.more=3", "has no parts"),
        ("training", "is no assignment"),
        ("method.tau=-1", "must not be negative"),
        ("method.tau=NaN", "method.tau is nan: it must be a number"),
        ("training.learning_rate=Infinity", "it must be a number"),
        ("method.training_schedule.power=0", "power is 0.0: it must be positive"),
        ("method.training_schedule.eps=0", "must be in"),
        ("method.training_schedule.eps=2", "must be in"),
        ("backbone.heads=0", "every size must be at least 1"),
        ("method=MDLN", "choose from .*MDLM"),
        ("training.seed=-1", "a whole number from 0"),
        ("data.length=0", "at least 1 token"),
    ],
)
def test_bad_assignments_say_what_is_allowed(assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe("duo-laptop", (assignment,))


def test_an_unknown_recipe_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match="unknown recipe 'duo-labtop': did you mean duo-laptop"):
        recipe("duo-labtop")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_reading_any_json_is_a_recipe_or_a_value_error(data: Any) -> None:
    try:
        from_json(data)
    except ValueError:
        return
    raise AssertionError(f"{data!r} is no recipe")


def test_a_recipe_with_a_field_of_another_version_is_refused() -> None:
    data: Any = to_json(recipe("duo-laptop"))
    data["training"]["optimiser"] = "lion"
    with pytest.raises(ValueError, match="Training has no field 'optimiser'"):
        from_json(data)
    del data["training"]["optimiser"], data["method"]
    with pytest.raises(ValueError, match="Recipe lacks method"):
        from_json(data)


def places(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every field in the JSON of a recipe."""
    for name, value in data.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from places(value, (*path, name))


@pytest.mark.parametrize("name", ["duo-laptop", "mdlm-molecules", "sedd-absorb-laptop", "plaid-laptop"])
def test_no_field_of_a_recipe_may_be_missing(name: str) -> None:
    """A field that was lost would take its default, and the run would be another one."""
    whole: Any = to_json(recipe(name))
    for *parents, leaf in places(whole):
        if leaf in ("type", "format"):
            continue
        data = json.loads(json.dumps(whole))
        node = data
        for parent in parents:
            node = node[parent]
        del node[leaf]
        with pytest.raises(ValueError, match=rf"lacks {leaf}: put back the file"):
            from_json(data)


WORDS = (
    *("0", "-1", "1.5", "1e999", "NaN", "-Infinity", "10000000000000", "9" * 400, "true", "null", "none"),
    *("[]", "[1,2]", "{}", '"x"', "\x00", "🙂", "../..", "a=b"),
)
WRONG = st.sampled_from(WORDS) | st.text(max_size=12) | st.floats().map(str) | st.integers().map(str)


@settings(max_examples=300)
@given(st.sampled_from(["duo-laptop", "mdlm-molecules", "sedd-absorb-laptop", "plaid-laptop"]), st.data(), WRONG)
def test_any_value_of_any_field_is_a_recipe_or_a_value_error(name: str, data: st.DataObject, value: str) -> None:
    base = recipe(name)
    field = data.draw(st.sampled_from([".".join(path) for path in places(to_jsonable(base))]))
    try:
        changed = modify(base, (f"{field}={value}",))
        assert from_json(json.loads(json.dumps(to_json(changed)))) == changed
        assert "parameters for a vocabulary of" in describe(changed)
    except ValueError:
        return


def test_a_recipe_of_a_later_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 7, this version reads 6"):
        from_json({**dict(to_json(recipe("duo-laptop"))), "format": 7})  # type: ignore[arg-type]


def test_a_recipe_without_a_format_is_refused() -> None:
    data = dict(to_json(recipe("duo-laptop")))  # type: ignore[arg-type]
    for former in ({**data, "format": 5}, {name: value for name, value in data.items() if name != "format"}):
        with pytest.raises(ValueError, match=r"the recipe has format (5|None), this version reads 6"):
            from_json(former)


@pytest.mark.slow
def test_reading_a_recipe_imports_what_it_names(tmp_path: Path) -> None:
    """The methods, objectives, networks and tokenizers of other recipes stay where they are."""
    (tmp_path / "recipe.json").write_text(json.dumps(to_json(recipe("mdlm-laptop"))))
    script = (
        "import json, sys; from duality.recipes.catalogue import from_json; "
        "from_json(json.load(open(sys.argv[1]))); print(*sys.modules)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "recipe.json")]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert "duality.methods.mdlm" in loaded
    others = {f"duality.methods.{name}" for name in ("duo", "sedd", "plaid", "ar", "d3pm")}
    assert not loaded & {*others, "duality.training.distillation", "tokenizers", "tomllib"}


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a\\b", "C:x", "..", ".hidden", "", " ", "a\nb", "\x1b[31mred", "x" * 101]
)
def test_a_name_that_could_be_a_path_or_steer_a_terminal_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="it must be a plain name") as refusal:
        replace(recipe("duo-laptop"), name=name)
    assert str(refusal.value).isprintable()
    assert replace(recipe("duo-laptop"), name="mein Modell, größer (2)").name
