"""docs/notebooks/first_night.ipynb runs from top to bottom, and what it names is there.

The notebook is executed as it is in git, but for its parameters. The two-layer model that was
taught two replies lies where the default model does, so the warm start, the server, the steps and
the transcripts are real and take minutes. Everything that it makes lies in a temporary folder.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from typer.main import get_command

from rollout.engine.serve import find_engine
from scripts.base.checkout import ROOT
from scripts.cli.app import app
from scripts.prepare.model import default_model_dir
from scripts.run.folder import RunFolder
from tests.tiny_policy import write_tasks

NOTEBOOK = ROOT / "docs" / "notebooks" / "first_night.ipynb"
STEPS = 2
TASK = "held-0"

COMMAND = re.compile(r"^\s*%grpo (.+)$", re.MULTILINE)
NAMED = re.compile(r"`%?grpo ([a-z]+)")
LINK = re.compile(r"\]\(([^)#:]+)\)")


def read() -> NotebookNode:
    notebook: NotebookNode = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def sources(kind: str) -> dict[str, str]:
    """The cells of one kind, by their ids."""
    return {cell.id: cell.source for cell in read().cells if cell.cell_type == kind}


def python(source: str) -> str:
    """A cell as Python, its `%` and `!` lines made calls."""
    return TransformerManager().transform_cell(source)  # type: ignore[no-untyped-call]


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    """The cell with this id."""
    found: NotebookNode
    (found,) = [c for c in notebook.cells if c.id == name]
    return found


def parameters(notebook: NotebookNode) -> NotebookNode:
    """The one cell whose source a caller replaces."""
    found: NotebookNode
    (found,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    return found


def defaults() -> dict[str, Any]:
    """The parameters as they are in git."""
    values: dict[str, Any] = {}
    exec(parameters(read()).source, values)
    return {name: value for name, value in values.items() if name.isupper()}


# --- the file -------------------------------------------------------------------------------------


def test_the_notebook_is_committed_without_outputs() -> None:
    for name in sources("code"):
        assert cell(read(), name).execution_count is None
        assert not cell(read(), name).outputs


@pytest.mark.parametrize("name", sources("code"))
def test_every_code_cell_is_python(name: str) -> None:
    ast.parse(python(sources("code")[name]))


@pytest.mark.parametrize(
    "line", [line for text in sources("code").values() for line in COMMAND.findall(text)]
)
def test_every_command_of_a_cell_is_one_with_these_options(line: str) -> None:
    name, *words = shlex.split(line.format(**defaults()))
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, words)  # reads the words and does nothing


def test_every_command_that_the_text_names_is_one() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    named = {name for text in sources("markdown").values() for name in NAMED.findall(text)}
    assert named
    assert named <= known


def test_every_picture_and_file_that_the_text_links_to_is_there() -> None:
    links = [link for text in sources("markdown").values() for link in LINK.findall(text)]
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).exists(), link


def test_the_task_to_look_at_is_among_those_that_are_evaluated() -> None:
    played = defaults()["SETTINGS"]["eval"]["tasks"]
    heldout = (ROOT / "data" / "heldout.jsonl").read_text().splitlines()[:played]
    assert defaults()["TASK"] in [json.loads(line)["task_id"] for line in heldout]


# --- from top to bottom ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Executed:
    """The notebook after its last cell, and what it made."""

    notebook: NotebookNode
    folder: RunFolder
    adapter: Path

    def said(self, name: str) -> str:
        """Everything that a cell prints."""
        return "".join(o.text for o in cell(self.notebook, name).outputs if "text" in o)

    def shown(self, name: str, kind: str) -> list[str]:
        """What a cell shows as `kind`, a MIME type."""
        found = [o.get("data", {}) for o in cell(self.notebook, name).outputs]
        return [data[kind] for data in found if kind in data]


def small(work: Path) -> dict[str, Any]:
    """The notebook's parameters for a run of minutes on the two-layer model."""
    adapter = str(work / "warm")
    engine = {"dtype": "float32", "kv_cache_gib": 0.25, "max_model_len": 512, "start_seconds": 900}
    return {
        "RUN": str(work / "night"),
        "STEPS": STEPS,
        "MODEL": "smol",
        "ADAPTER": adapter,
        "DEMOS": 16,  # two batches; enough to see that an adapter comes of it
        "TASK": TASK,
        "SETTINGS": {
            # Six tasks are too few for a preflight to be sure of finding signal among them.
            "run": {"eval_every": 0, "preflight": False},
            "model": {"path": "smol", "adapter": adapter},
            "data": {
                "pool": str(write_tasks(work / "pool.jsonl", 6, "pool")),
                "heldout": str(write_tasks(work / "heldout.jsonl", 4, "held")),
            },
            "rollout": {
                "tasks_per_step": 2,
                "group_size": 4,
                "max_turns": 2,
                "max_new_tokens": 16,
            },
            "trainer": {"dtype": "fp32"},
            "eval": {"tasks": 0},
            "engine": engine,
        },
    }


@pytest.fixture(scope="module")
def executed(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """The notebook, executed in a folder of its own; raises with the text of a cell that fails."""
    work = tmp_path_factory.mktemp("notebook")
    cache = work / "cache"
    shutil.copytree(policy[0], cache / default_model_dir().name)
    values = small(work)
    assert set(values) == set(defaults()), "a parameter was added or renamed"
    notebook = read()
    parameters(notebook).source = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    # The doctor looks at every process of this user: what another test leaves is not our failure.
    cell(notebook, "doctor").metadata["tags"] = ["raises-exception"]
    client = NotebookClient(
        notebook,
        resources={"metadata": {"path": str(work)}},
        startup_timeout=300,
        iopub_timeout=60,  # a busy machine may be late with the last line that a cell printed
    )
    client.execute(env={**os.environ, "GRPO_CACHE": str(cache)})
    return Executed(notebook, RunFolder(work / "night"), work / "warm")


def engine(test: Any) -> Any:
    """Marks of a test that needs the executed notebook."""
    return pytest.mark.engine(pytest.mark.timeout(1200)(test))


@engine
def test_no_cell_is_left_out(executed: Executed) -> None:
    for name in sources("code"):
        assert cell(executed.notebook, name).execution_count is not None, name


@engine
def test_the_doctor_finds_what_a_night_needs(executed: Executed) -> None:
    for name in ("packages", "programs", "sandbox", "model"):
        assert re.search(rf"^ok +{name} ", executed.said("doctor"), re.MULTILINE), name


@engine
def test_a_warm_start_that_is_missing_is_made(executed: Executed) -> None:
    assert (executed.adapter / "adapter_model.safetensors").is_file()
    assert re.search(r"16 demonstrations, \d+ of them say", executed.said("sft"))
    assert executed.shown("sft", "image/png")


@engine
def test_the_run_finishes_its_steps_and_ends_its_server(executed: Executed) -> None:
    assert executed.folder.finished_steps() == STEPS + 1
    assert find_engine(executed.folder.path) is None
    assert "no engine" in executed.said("clean-up")


@engine
def test_the_settings_of_the_notebook_are_in_the_run_toml_that_it_shows(
    executed: Executed,
) -> None:
    (shown,) = executed.shown("new", "text/plain")
    for line in ("max_turns = 2", f"adapter = {json.dumps(str(executed.adapter))}"):
        assert line in shown
        assert line in executed.folder.config.read_text()


@engine
def test_the_table_and_the_verdict_are_those_of_the_evidence(executed: Executed) -> None:
    page = (executed.folder.path / "evidence.md").read_text()
    (table,) = executed.shown("table", "text/markdown")
    (verdict,) = executed.shown("verdict", "text/markdown")
    assert f"step {STEPS} − warm start" in table
    assert table.splitlines()[2] in page
    assert verdict.splitlines()[0] in page


@engine
@pytest.mark.parametrize("name", ["curve", "dots"])
def test_the_learning_curve_is_a_picture(executed: Executed, name: str) -> None:
    assert len(executed.shown(name, "image/png")) == 1


@engine
def test_the_transcripts_stand_side_by_side(executed: Executed) -> None:
    lines = executed.said("transcripts").splitlines()
    assert lines[0].startswith(TASK)
    (at,) = [i for i, line in enumerate(lines) if "a random policy ──" in line]
    assert lines[at].startswith(f"step {STEPS} on the held-out set ──")
    assert lines[at + 1].count("reward") == 2, "each column says how its attempt ended"
    assert "warm start on the held-out set" in executed.said("before")
