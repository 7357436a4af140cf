"""A key is one field: reader, manifest, conditions and documentation are drawn from it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import PositiveInt

from fieldkit.errors import BadInput
from fieldkit.settings import Change, Follows, Unit, read_tables, settings
from rollout.settings import RolloutSettings
from scripts.prepare.presets import preset_config
from scripts.run.config import RunConfig
from scripts.run.keys import DEFAULTS, all_keys, dotted_keys, settings_page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


@settings("rollout")
class PatientRollout(RolloutSettings):
    """What a rollout is told in this test."""

    patience: Annotated[PositiveInt, Unit("turns"), Change.MACHINE] = 3
    """Turns without | a command before an episode ends."""
    blocks: Annotated[int, Follows("engine.block_size")] = 32
    """The same number again."""


@dataclass(frozen=True)
class PatientConfig(RunConfig):
    rollout: PatientRollout = field(default_factory=PatientRollout)


def read(text: str) -> PatientConfig:
    return read_tables(PatientConfig, tomllib.loads(text), "run.toml")


def test_a_new_key_is_read_and_written_in_the_resolved_form() -> None:
    config = read("[rollout]\npatience = 5\n[engine]\nblock_size = 16\n")
    assert config.rollout.patience == 5
    assert config.plain()["rollout"]["patience"] == 5
    assert config.rollout.blocks == 16


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("patiense = 5", "run.toml: [rollout]: unknown key 'patiense'; did you mean 'patience'?"),
        ("patience = 0", "rollout.patience: expected a whole number above 0 (turns), found 0"),
        ("patience = true", "expected a whole number above 0 (turns), found True (true or false)"),
        ("blocks = 3", "engine.block_size is 32; they are one value: leave out rollout.blocks"),
    ],
)
def test_a_new_key_is_refused_like_any_other(text: str, says: str) -> None:
    with pytest.raises(BadInput) as error:
        read(f"[rollout]\n{text}\n")
    assert says in str(error.value)


def test_a_new_key_says_what_may_become_of_it_and_is_documented() -> None:
    [key] = [k for k in all_keys(PatientConfig) if k.name == "patience"]
    assert (key.dotted, key.default, key.change) == ("rollout.patience", 3, Change.MACHINE)
    assert not key.condition
    page = settings_page(PatientConfig).splitlines()
    assert (
        "| `patience` | `3` | a whole number above 0 (turns) | yes: fits the night to the machine "
        "| Turns without \\| a command before an episode ends. |" in page
    )
    assert "| `blocks` | `32` | a whole number | no | The same number again. Follows " in (
        settings_page(PatientConfig)
    )


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == settings_page() + "\n", (
        "`python -m scripts.run.keys > docs/settings.md` writes it anew"
    )


def test_every_key_is_documented_with_what_may_become_of_it() -> None:
    documented = PAGE.read_text()
    assert all(f"| `{key.name}` |" in documented for key in all_keys())
    assert dotted_keys(Change.LENGTH) == {
        *("run.steps", "run.minutes", "run.eval_every", "run.wandb"),
        *("eval.tasks_at_training_temperature", "eval.base"),
        *("run.on_converged", "run.stop_when_flat", "pool.bound", "pool.confidence"),
    }
    assert dotted_keys(Change.TYPED) == {"sandbox.kind"}
    machine = dotted_keys(Change.MACHINE)
    assert {"engine.port", "rollout.concurrency", "trainer.gradient_checkpointing"} <= machine
    assert not machine & {"engine.dtype", "engine.max_model_len", "rollout.group_size"}


def test_what_is_said_of_the_preset_that_a_night_takes_is_so() -> None:
    config = preset_config("smol")
    size, minutes = config.rollout.group_size, config.run.minutes
    assert f"group_size is {size} and run.minutes {minutes:g}." in DEFAULTS
    assert RunConfig().rollout.group_size != size
    assert RunConfig().run.minutes != minutes
