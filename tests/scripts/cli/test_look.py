"""The commands that read a run: where their pages may go."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.cli.look import require_ordinary
from scripts.run.assignments import assigned, parse
from tests.scripts.cli.in_process import grpo
from tests.scripts.made_night import make_night
from tests.scripts.typed import BAD_INPUT


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["report", "first-night"], "--out"), (["compare", "first-night@warm", "x"], "--html")],
)
def test_a_page_does_not_take_the_place_of_a_pipe(
    words: list[str], flag: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    ended = grpo(*words, flag, tmp_path / "pipe")
    assert ended.code == BAD_INPUT
    assert f"error: {tmp_path}/pipe: no ordinary file; name one, as in `{flag} " in ended.error
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["null", "stdout", "fd/1"])
def test_a_name_of_a_device_is_no_place_for_a_page(name: str) -> None:
    with pytest.raises(BadInput, match=f"^/dev/{name}: no ordinary file"):
        require_ordinary(Path("/dev", name), "--out")


def test_the_table_as_json_writes_the_files_too(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=1)
    run, data = night.folder.path, night.config.data
    own = [f"data.{key}={getattr(data, key)}" for key in ("pool", "heldout")]
    night.folder.config.write_text(assigned("", parse(own), "run.toml"))
    ended = grpo("table", run, "--json")
    assert ended.code == 0, ended.error
    assert json.loads(ended.out)
    assert str(run / "evidence.json") in ended.error.splitlines()
    assert (run / "report.html").is_file()
