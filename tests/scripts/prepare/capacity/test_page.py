"""docs/SCALE.md and docs/capacity.json say what the model says."""

from __future__ import annotations

from typing import Any

import pytest

from fieldkit.files.atomic import read_json
from tests.scripts.prepare.capacity.page import BEGIN, COMMAND, FOUND, PAGE, find, in_page, section


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """Every value by where it stands."""
    if isinstance(value, dict):
        return {k: v for key in value for k, v in flat(value[key], f"{at}.{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{at}.{i}").items()}
    return {at: value}


def test_the_page_has_the_section_of_the_table() -> None:
    text = PAGE.read_text()
    assert in_page(text, read_json(FOUND)) == text


def test_the_table_is_what_the_model_finds() -> None:
    """`python -m tests.scripts.prepare.capacity.page` writes both anew."""
    kept, now = flat(read_json(FOUND)), flat(find())
    assert kept.keys() == now.keys()
    numbers = {key for key, value in now.items() if type(value) in (int, float)}
    assert {k: v for k, v in kept.items() if k not in numbers} == {
        k: v for k, v in now.items() if k not in numbers
    }
    assert {k: kept[k] for k in numbers} == pytest.approx({k: now[k] for k in numbers}, rel=1e-6)


def test_every_table_of_predictions_is_called_predicted() -> None:
    found = read_json(FOUND)
    text = section(found)
    for model in found["predicted"]:
        assert f"### Predicted: {model}" in text
    assert COMMAND in BEGIN
