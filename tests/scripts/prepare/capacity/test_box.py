"""Boxes: those that are shipped, and a person's own file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.prepare.capacity.box import Box, named_box, read_box, shipped_boxes

OWN = """
[box]
title = "mine"
tflops = 100.0
memory_gb_s = 500.0
memory_gb = 24.0
"""


@pytest.mark.parametrize("name", shipped_boxes())
def test_every_figure_of_a_shipped_box_says_where_it_is_from(name: str) -> None:
    table = tomllib.loads(shipped_boxes()[name].read_text())["box"]
    assert table["sources"].keys() == table.keys() - {"title", "sources"}
    assert all(table["sources"].values())


def test_the_boxes_that_are_asked_for_are_there() -> None:
    assert {"spark", "h100", "h100-x8", "h100-x8-x4"} <= shipped_boxes().keys()
    assert named_box("h100-x8").n_devices == 8
    assert named_box("h100-x8-x4").n_devices == 32


def test_units_are_those_of_the_keys() -> None:
    h100 = named_box("h100")
    assert h100.flops == pytest.approx(0.753 * 989e12)
    assert h100.bandwidth == pytest.approx(0.6 * 3.35e12)


def test_a_box_of_ones_own_needs_five_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    box = named_box(str(file))
    assert isinstance(box, Box)
    assert (box.tflops, box.devices, box.machines) == (100.0, 1, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"mine.toml: a box is one table, written \[box\]"),
        ("box = 3", r"a box is one table"),
        (OWN + "[engine]\n", r"unknown key 'engine'"),
        (OWN + "tflop = 1.0\n", r"\[box\]: unknown key 'tflop'; did you mean 'tflops'"),
        (
            OWN.replace("24.0", "0.0"),
            r"box.memory_gb: expected a finite number of at least .*\(GB\)",
        ),
        (OWN.replace("24.0", "inf"), r"box.memory_gb: expected"),
        (OWN.replace("24.0", '"much"'), r"box.memory_gb: expected .*found 'much'"),
        (OWN.replace("memory_gb = 24.0", ""), r"box.memory_gb: expected"),
        (OWN + "matmul_share = 1.5\n", r"box.matmul_share: expected .*at most 1"),
        (OWN + "devices = 0\n", r"box.devices: expected"),
        (OWN + f"devices = {10**400}\n", r"box.devices: expected"),
        (OWN.replace("24.0", "1e300"), r"box.memory_gb: expected .*at most"),
        (OWN + '[box.sources]\ntflop = "me"\n', r"'tflop' is no key of a box; did you mean"),
        ("[box", r"not TOML"),
    ],
)
def test_a_file_that_is_no_box_is_an_error_that_names_file_and_key(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=said) as caught:
        read_box(file)
    assert str(file) in str(caught.value)


def test_a_box_that_is_not_there_is_an_error_that_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--box sparc: unknown; did you mean 'spark'\? Known: epyc"):
        named_box("sparc")
    with pytest.raises(BadInput, match=r"no such file; copy .*h100.toml"):
        named_box(str(tmp_path / "none.toml"))
    with pytest.raises(BadInput, match=r"^~nobody-here/mine.toml: no such file"):
        named_box("~nobody-here/mine.toml")
    (tmp_path / "latin.toml").write_bytes(b'[box]\ntitle = "\xe9"\n')
    with pytest.raises(BadInput, match=r"not UTF-8"):
        read_box(tmp_path / "latin.toml")
