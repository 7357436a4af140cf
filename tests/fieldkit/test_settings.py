"""Settings on a small composition: read strictly, brought together, and documented from one field.

What the loop's own keys are is tested where they are (tests/scripts/run).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le

from fieldkit.errors import BadInput
from fieldkit.registry import Registry
from fieldkit.settings import (
    Change,
    Choice,
    Follows,
    Unit,
    current,
    keys,
    meaning_of_keys,
    read,
    read_tables,
    retired_keys,
    settings,
    settings_lines,
    tables,
)


class Care(StrEnum):
    LITTLE = "little"
    MUCH = "much"


class Steady:
    """Slow and | sure.

    More of it.
    """


SOLVERS: Registry[Any] = Registry("solver")
SOLVERS.register("steady", Steady)
SOLVERS.register("bold", lambda: None)


@settings("sampling")
class Sampling:
    """How replies are drawn."""

    temperature: Annotated[float, Ge(0), Le(2)] = 1.0
    """T of the softmax."""
    seconds: Annotated[float | Literal["auto"], Unit("seconds")] = "auto"
    """Of one reply."""


@settings("solver", retired={"heat": "sampling.temperature"})
class Solver:
    """What is done with them.

    A second paragraph."""

    steps: int
    """How many."""
    kind: Annotated[str, Choice(SOLVERS), Change.MACHINE] = "steady"
    """Which one."""
    temperature: Annotated[float, Follows("sampling.temperature")] = 1.0
    """T again."""
    care: Care = Care.MUCH
    """How much."""
    extra: dict[str, int] = field(default_factory=dict)
    """More of it."""

    def __post_init__(self) -> None:
        if self.steps == 13:
            raise BadInput("solver.steps: not thirteen")


@dataclass(frozen=True)
class Whole:
    sampling: Sampling
    solver: Solver
    name: str = ""


def whole(**given: Any) -> Whole:
    return read_tables(Whole, {"solver": {"steps": 1}, **given}, "run.toml")


def test_tables_become_their_settings_and_a_key_that_follows_has_its_leaders_value() -> None:
    found = whole(sampling={"temperature": 0.5})
    assert found.sampling == Sampling(temperature=0.5)
    assert found.solver == Solver(steps=1, temperature=0.5)
    assert whole(solver={"steps": 1, "temperature": 1.0}).solver.temperature == 1.0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"smpling": {}}, "unknown table 'smpling'; did you mean 'sampling'?"),
        ({"qqq": {}}, "unknown table 'qqq'; known: sampling, solver"),
        ({"solver": 3}, "solver must be a table, written [solver]"),
        (
            {"solver": {"steps": 1, "stps": 2}},
            "[solver]: unknown key 'stps'; did you mean 'steps'?",
        ),
        (
            {"solver": {"steps": "two"}},
            "solver.steps: expected a whole number, found 'two' (a text)",
        ),
        ({"solver": {"steps": 13}}, "solver.steps: not thirteen"),
        (
            {"solver": {"steps": 1, "kind": "stedy"}},
            "solver.kind: expected one of 'steady', 'bold', found 'stedy'; did you mean 'steady'?",
        ),
        (
            {"solver": {"steps": 1, "care": "litle"}},
            "solver.care: expected one of 'little', 'much', found 'litle'; did you mean 'little'?",
        ),
        (
            {"solver": {"steps": 1, "extra": 2}},
            "solver.extra: expected a table, found 2 (a whole number)",
        ),
        (
            {"solver": {"steps": 1, "extra": {"heat": "high"}}},
            "solver.extra.heat: expected a whole number, found 'high' (a text)",
        ),
        (
            {"sampling": {"temperature": 3.0}},
            "sampling.temperature: expected a finite number of at least 0 and of at most 2, "
            "found 3.0",
        ),
        (
            {"sampling": {"seconds": "soon"}},
            "sampling.seconds: expected a finite number or 'auto' (seconds), found 'soon'",
        ),
        (
            {"sampling": {"temperature": 10**5000}},
            "sampling.temperature: expected a finite number of at least 0 and of at most 2, "
            "found a number with too many digits",
        ),
        (
            {"solver": {"steps": 1, "temperature": 0.5}},
            "solver.temperature is 0.5 but sampling.temperature is 1.0; they are one value: leave "
            "out solver.temperature",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_and_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as refused:
        whole(**given)
    assert str(refused.value).startswith(f"run.toml: {says}")


def test_a_retired_key_may_stand_in_an_older_file_with_the_value_it_repeats() -> None:
    assert read(Solver, {"steps": 1, "heat": 0.7}, "f") == Solver(steps=1)
    assert current(Solver, {"steps": 1, "heat": 0.7}) == {"steps": 1}
    assert retired_keys(Whole) == {"solver.heat"}
    assert whole(solver={"steps": 1, "heat": 1.0}).solver == Solver(steps=1)
    with pytest.raises(BadInput, match=r"solver\.heat is 0\.7 but sampling\.temperature is 1\.0"):
        whole(solver={"steps": 1, "heat": 0.7})


def test_every_fact_about_a_key_comes_from_its_field() -> None:
    assert list(tables(Whole)) == ["sampling", "solver"]
    found = {key.dotted: key for cls in tables(Whole).values() for key in keys(cls)}
    steps, kind = found["solver.steps"], found["solver.kind"]
    assert (steps.default, steps.kind, steps.change) == (None, int, Change.BINDS)
    assert (kind.default, kind.kind, kind.change) == ("steady", str, Change.MACHINE)
    assert (steps.condition, kind.condition) == (True, False)
    assert found["solver.temperature"].follows == "sampling.temperature"
    assert (found["solver.extra"].default, found["solver.extra"].kind) == ({}, dict)
    assert (found["sampling.seconds"].kind, found["sampling.seconds"].unit) == (float, "seconds")


def test_a_page_shows_each_key_with_the_text_below_its_field() -> None:
    assert meaning_of_keys(Solver)["temperature"] == "T again. Follows `sampling.temperature`."
    lines = list(settings_lines(Solver))
    assert lines[1:4] == ["## [solver]", "", "What is done with them."]
    assert "| `steps` | – | a whole number | no | How many. |" in lines
    assert '- `kind = "steady"`: Slow and | sure.' in lines
    kind = next(line for line in lines if line.startswith("| `kind`"))
    assert kind == (
        "| `kind` | `\"steady\"` | one of 'steady', 'bold' | yes: fits the night to the machine "
        "| Which one. |"
    )
