"""The programs in docs/fieldkit run as a stranger runs them, on models that peft has wrapped."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fieldkit.training
from fieldkit.cli.command_line import COMMANDS
from fieldkit.training import read_adapter
from scripts.base.checkout import ROOT
from tests.fieldkit.peft_models import ARCHITECTURES, base_model, peft_model
from tests.tiny_model import make_tiny_model

PROGRAMS = ROOT / "docs" / "fieldkit" / "programs"


def program(name: str) -> dict[str, Any]:
    return runpy.run_path(str(PROGRAMS / name))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_plain_script_trains_every_architecture(architecture: str) -> None:
    torch.manual_seed(0)
    history = program("plain_script.py")["train"](peft_model(architecture), 3)
    assert history[0]["kl"] == 0.0
    assert all(step["l2"] > 0 for step in history)
    assert history[-1]["kl"] > 0


def test_the_plain_script_learns() -> None:
    torch.manual_seed(0)
    base = base_model("llama")
    with torch.no_grad():
        base.get_output_embeddings().weight.mul_(20)  # random ones hardly prefer any token
    history = program("plain_script.py")["train"](peft_model("llama", base, r=8), 40)
    first, last = (sum(s["reward"] for s in part) / 10 for part in (history[:10], history[-10:]))
    assert last > first + 0.1


def test_the_plain_script_writes_an_adapter_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base_model("qwen3").save_pretrained(str(tmp_path / "model"))
    words = [str(PROGRAMS / "plain_script.py"), str(tmp_path / "model"), str(tmp_path / "out"), "2"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(words[0], run_name="__main__")
    assert "step 1: reward" in capsys.readouterr().out
    assert read_adapter(tmp_path / "out").target_modules == ("q_proj", "v_proj")


@pytest.mark.slow  # TRL alone takes half a minute to import; make test-fieldkit
def test_the_trl_callback_sees_every_step(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    evidence = program("trl_callback.py")["main"](str(folder), str(tmp_path / "out"), 2)
    assert len(evidence.steps) == 2
    assert all(delta.served_l2 > 0 for delta in evidence.steps)
    assert evidence.moved > 0


def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    read: Any = nbformat.read
    notebook = read(PROGRAMS / "notebook.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    printed = [o.text for c in notebook.cells for o in c.get("outputs", ()) if "text" in o]
    assert any("before," in text and "after" in text for text in printed)


GUIDE = (PROGRAMS.parent / "README.md").read_text()
DIFFERENCES = (PROGRAMS.parent / "differences.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```$", GUIDE, re.M | re.S))
def test_every_example_of_the_guide_runs(block: str) -> None:
    exec(compile(block, "docs/fieldkit/README.md", "exec"), {})


def test_the_guide_names_what_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", GUIDE)
    assert links
    assert [link for link in links if not (PROGRAMS.parent / link).exists()] == []
    room = GUIDE.partition("## Training")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", room, re.M)))
    assert len(named) > 10
    assert [name for name in named if not hasattr(fieldkit.training, name)] == []
    shown = re.findall(r"^    fieldkit (\w+) ", GUIDE, re.M)
    assert set(shown) <= COMMANDS.keys()


def test_every_listed_difference_has_its_test_and_every_such_test_its_row() -> None:
    tests = "\n".join(p.read_text() for p in Path(__file__).parent.glob("compat/test_*.py"))
    functions = re.split(r"^(?:async )?def (test_\w+)", tests, flags=re.M)[1:]
    bodies = dict(zip(functions[::2], functions[1::2], strict=True))
    differ = {
        name
        for name, body in bodies.items()
        if "OURS" in re.split(r"^(?=[^\s)])", body, maxsplit=2, flags=re.M)[1]
    }
    listed = re.findall(r"`(test_\w+)` \|$", DIFFERENCES, re.M)
    assert len(listed) == len(set(listed)) > 10
    assert set(listed) == differ
