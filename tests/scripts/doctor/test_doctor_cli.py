"""`grpo doctor` as it is typed: what is wrong is BAD, says what mends it, and is the exit code.

What the machine cannot be made to lack here (memory, a whole disk) is asked for in excess instead.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fieldkit.files.atomic import read_json, write_json
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned
from fieldkit.training.adapter import CONFIG_FILE
from rollout.engine.replica import ENGINE
from rollout.engine.serve import stop_engine
from scripts.cli.app import main
from scripts.doctor import checkup, ownership
from scripts.run import folder
from tests.conftest import TinyModel
from tests.rollout.engine.test_leftovers import IMPOSSIBLE
from tests.scripts.doctor.servers import gone, loop_of, mine, start
from tests.tiny_policy import write_run

BAD_INPUT, UNAVAILABLE, SHORTAGE = 2, 4, 5
FAR_TOO_MUCH = 10**18  # bytes


class Said(NamedTuple):
    """How `grpo doctor` ended. lines: a finding each, by its name."""

    code: int
    lines: list[str]
    error: str

    def bad(self, name: str) -> str:
        """The only finding of that name that is not ok."""
        (found,) = [line for line in self.lines if line.startswith(f"BAD  {name}")]
        return found


Doctor = Callable[..., Said]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout whose processes are all that the doctor finds, and do not outlive the test."""
    monkeypatch.setattr(ownership, "ROOT", tmp_path)
    monkeypatch.setattr(folder, "ROOT", tmp_path)
    for module in (checkup, ownership):
        monkeypatch.setattr(module, "families", lambda: mine(tmp_path))
    monkeypatch.setattr(checkup, "MEMORY_BYTES", 0)  # whoever else uses this machine
    yield tmp_path
    for family in mine(tmp_path):
        for pid in family.pids:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def ask(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Doctor]:
    """`grpo doctor` with these words."""
    interrupt = signal.getsignal(signal.SIGINT)

    def grpo(*words: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["grpo", "doctor", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Said(int(ended.value.code or 0), out.splitlines(), err)

    yield grpo
    signal.signal(signal.SIGINT, interrupt)


@pytest.fixture(scope="module")
def parts(tiny: TinyModel) -> tuple[Path, Path]:
    return tiny.folder, tiny.adapter(1)


def start_engine(run: Path, *, answered: bool = True) -> Owned:
    """Start what the ledger holds for a server, and what never answers. answered: it once did."""
    owned = start(run, name=ENGINE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    info = {"port": port, **({"lifecycle": "hotswap"} if answered else {})}
    owned = replace(owned, info=info)
    Ledger(run / LEDGER_FILE).record(owned)
    return owned


# -- the endpoint ------------------------------------------------------------------------------


def test_an_engine_in_use_that_does_not_answer_is_bad_and_says_how_to_stop_it(
    checkout: Path, ask: Doctor
) -> None:
    run = checkout / "runs" / "tonight"
    start_engine(run)
    with loop_of(run):
        said = ask()
    assert said.code == UNAVAILABLE
    assert "does not answer, a loop uses it" in said.bad("process")
    assert "(Ctrl-C there), `grpo stop tonight` ends it" in said.bad("process")


def test_an_engine_that_is_loading_is_not_bad(checkout: Path, ask: Doctor) -> None:
    run = checkout / "runs" / "tonight"
    start_engine(run, answered=False)
    with loop_of(run):
        said = ask()
    (line,) = [line for line in said.lines if " process " in line]
    assert line.startswith("ok")
    assert "is starting, a loop uses it" in line


def test_an_engine_that_nobody_uses_and_does_not_answer_is_reclaimed(
    checkout: Path, ask: Doctor
) -> None:
    start_engine(checkout / "runs" / "old")
    (found,) = mine(checkout)
    before = ask()
    assert before.code == UNAVAILABLE
    assert "does not answer, no loop uses it; `grpo doctor --reclaim`" in before.bad("process")
    assert not gone(found.pids)
    after = ask("--reclaim")
    assert after.code == 0, after
    assert after.lines[0].startswith("ended engine of run old: 2 processes")
    assert "ok   processes  no run has any" in after.lines
    assert gone(found.pids)
    assert ask("--reclaim").lines[0] == "nothing to reclaim"


def test_memory_that_a_reclaimed_engine_does_not_give_back_is_a_shortage(
    checkout: Path, ask: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_engine(checkout / "runs" / "old")
    (found,) = mine(checkout)
    monkeypatch.setattr(ownership, "stop_engine", lambda run: stop_engine(run, IMPOSSIBLE))
    said = ask("--reclaim")
    assert said.code == SHORTAGE
    assert "largest holders: pid " in said.error
    assert gone(found.pids)


def test_a_ledger_that_cannot_be_read_is_bad_and_the_others_are_reclaimed(
    checkout: Path, ask: Doctor
) -> None:
    for name in ("broken", "old"):
        start(checkout / "runs" / name)
    (checkout / "runs" / "broken" / LEDGER_FILE).write_text("{")
    said = ask("--reclaim")
    assert said.code == UNAVAILABLE
    assert said.lines[0].startswith("ended trainer of run old")
    assert "ledger.json.bad` and `grpo doctor --reclaim` end it" in said.bad("process")


# -- the machine -------------------------------------------------------------------------------


def test_too_little_memory_is_bad_and_says_who_holds_it_and_what_ends_that(
    ask: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "MEMORY_BYTES", FAR_TOO_MUCH)
    said = ask()
    assert said.code == UNAVAILABLE
    assert "holders: pid " in said.bad("memory")
    assert "`kill PID`; `grpo doctor --reclaim`" in said.bad("memory")


def test_too_little_disk_is_bad_and_says_how_to_find_what_takes_it(
    ask: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "DISK_MARGIN_BYTES", FAR_TOO_MUCH)
    said = ask()
    assert said.code == UNAVAILABLE
    assert "`du -sh " in said.bad("disk")


def run_with(parts: tuple[Path, Path], checkout: Path, **tables: Any) -> Path:
    return write_run(checkout / "nights" / "r", *parts, **tables)


def test_a_run_that_its_disk_cannot_hold_is_bad(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    said = ask(run_with(parts, checkout, run={"steps": 10**9}))
    assert said.code == UNAVAILABLE
    assert "put the run elsewhere: `grpo new /PATH/RUN`" in said.bad("run's disk")


def test_a_setting_that_would_stop_the_night_is_bad_input(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    said = ask(run_with(parts, checkout, rollout={"temperature": 50.0}))
    assert said.code == BAD_INPUT
    assert "rollout.temperature: expected a finite number" in said.bad("settings")
    said = ask(write_run(checkout / "nights" / "s", *parts, rollout={"tasks_per_step": 7}))
    assert said.code == BAD_INPUT
    assert "rollout.tasks_per_step is 7" in said.bad("tasks")


def test_a_run_whose_port_is_busy_is_bad_and_says_who_holds_it(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        said = ask(run_with(parts, checkout, engine={"port": held.getsockname()[1]}))
    assert said.code == UNAVAILABLE
    assert f"held by pid {os.getpid()}" in said.bad("port")
    assert "set engine.port to 0" in said.bad("port")


def test_a_run_that_does_not_fit_the_memory_is_bad_and_says_what_to_lower(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    said = ask(run_with(parts, checkout, engine={"kv_cache_gib": 1e6}))
    assert said.code == UNAVAILABLE
    assert "not enough even one after the other" in said.bad("forecast")
    assert "lower engine.kv_cache_gib" in said.bad("forecast")


def test_a_model_that_is_not_there_fails_one_check_and_the_others_say_that_they_need_it(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    said = ask(run_with((checkout / "gone", parts[1]), checkout))
    assert said.code == BAD_INPUT
    assert "gone: no such folder" in said.bad("model")
    assert [line.split()[1] for line in said.lines if line.startswith("BAD")] == ["model"]
    unchecked = [line for line in said.lines if line.startswith("-    ")]
    assert len(unchecked) == 6
    assert all(line.endswith(" not checked: it needs the model") for line in unchecked)
    assert f"1 of {len(said.lines)} checks failed: model" in said.error


def test_an_adapter_that_is_not_there_fails_one_check(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    said = ask(run_with((parts[0], checkout / "gone"), checkout))
    assert "gone: no such folder" in said.bad("adapter")
    assert "-    run's disk not checked: it needs the adapter" in said.lines
    assert "checks failed: adapter" in said.error


def test_an_adapter_that_names_another_base_is_told_with_what_will_show_it(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    model, adapter = parts
    other = checkout / "adapter"
    shutil.copytree(adapter, other)
    config = read_json(other / CONFIG_FILE)
    write_json(other / CONFIG_FILE, config | {"base_model_name_or_path": "org/Other-7B"})
    (line,) = (said for said in ask(run_with((model, other), checkout)).lines if " fits " in said)
    assert line.startswith("ok   adapter")
    assert f"says that it was trained on Other-7B, and its shapes fit {model.name} too" in line


def test_one_that_was_trained_on_fewer_bits_is_told_what_that_may_cost(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    model, adapter = parts
    own = checkout / "adapter"
    shutil.copytree(adapter, own)
    config = read_json(own / CONFIG_FILE)
    base = f"unsloth/{model.name}-bnb-4bit"
    write_json(own / CONFIG_FILE, config | {"base_model_name_or_path": base})
    (line,) = (said for said in ask(run_with((model, own), checkout)).lines if " fits " in said)
    assert f"{model.name}-bnb-4bit, whose weights have fewer bits than those of" in line


def test_an_adapter_that_names_this_base_is_told_without_a_doubt(
    parts: tuple[Path, Path], checkout: Path, ask: Doctor
) -> None:
    (line,) = (said for said in ask(run_with(parts, checkout)).lines if " fits " in said)
    assert "trained on" not in line
