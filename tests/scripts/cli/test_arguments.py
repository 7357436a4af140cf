"""What --engine writes into run.toml."""

from __future__ import annotations

from pathlib import Path

from scripts.cli.arguments import write_engine
from scripts.run.config import read_config


def test_a_run_goes_to_a_cluster_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "night" / "run.toml"
    file.parent.mkdir()
    file.write_text("[run]\nseed = 3  # kept\n")
    write_engine(str(file.parent), None)
    assert file.read_text() == "[run]\nseed = 3  # kept\n"
    write_engine(str(file.parent), "ray")
    assert read_config(file).cluster.used
    write_engine(str(file.parent), "here")
    assert not read_config(file).cluster.used
    assert "seed = 3  # kept" in file.read_text()
