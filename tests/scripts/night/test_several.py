"""A sweep on the scripted engine: played, stopped, gone on with, cut by its hours, and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fieldkit.errors import BadInput, Interrupted, NotOwner, Shortage, Unavailable
from fieldkit.files.journal import Journal
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import since_boot
from scripts.base.checkout import ROOT
from scripts.base.exit_codes import ChildBug
from scripts.base.signals import Wish
from scripts.night import several
from scripts.night.several import NightsFailed, is_over, night_seconds
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader
from tests.chaos.night import SITE
from tests.scripts.made_night import Night, make_night
from tests.scripts.night.running import WORLD
from tests.tiny_policy import write_tasks

pytestmark = pytest.mark.timeout(1200)

ENV = {**os.environ, "PYTHONPATH": f"{WORLD}{os.pathsep}{SITE}"}
NAMES = ("penalty-0-seed0", "penalty-1-seed0")


def grpo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "scripts.cli", *words],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def sweep(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms with one seed, one step each, ready to be played."""
    return made_sweep(policy, tmp_path_factory.mktemp("swept") / "sweep", 1)


def made_sweep(policy: tuple[Path, Path], folder: Path, steps: int, *words: str) -> Path:
    """Two arms with one seed, ready to be played. words: further ones of `grpo sweep new`."""
    model, adapter = policy
    values = {
        "run.steps": steps,
        "run.preflight": "false",
        "model.path": model,
        "model.adapter": adapter,
        "data.pool": write_tasks(folder.parent / "pool.jsonl", 6, "pool"),
        "data.heldout": write_tasks(folder.parent / "heldout.jsonl", 4, "held"),
        "data.final": "",
        "eval.base": "never",
        "eval.tasks": 0,
        "rollout.tasks_per_step": 2,
        "rollout.group_size": 4,
        "rollout.max_turns": 2,
        "rollout.max_new_tokens": 16,
        "trainer.dtype": "fp32",
        "engine.dtype": "float32",
        "engine.max_model_len": 512,
        "engine.kv_cache_gib": 0.25,
    }
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    vary = ["--vary", "reward.turn_penalty=0,1"]
    made = grpo("sweep", "new", str(folder), *vary, "--seeds", "0", *settings, *words)
    assert made.returncode == 0, made.stderr
    return folder


def nights(sweep: Path) -> list[RunFolder]:
    return [RunFolder(sweep / f"turn_{name}") for name in NAMES]


class Begun:
    """The nights that were begun in place of `run_loop`, and what was said of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.said: list[str] = []
        monkeypatch.setattr(several, "run_loop", lambda night, *rest: self.names.append(night.name))

    def within(self, hours: float, *nights: RunFolder) -> bool:
        until = since_boot() + 3600 * hours
        return several.play_nights(nights, several.AS_SET, until, self.said.append, "go on")


def set_steps(night: Night, steps: int) -> RunFolder:
    """Give a made night a run.toml of so many steps."""
    data, folder = night.config.data, night.folder
    folder.config.write_text(
        f"[run]\nsteps = {steps}\neval_every = 0\n[data]\n"
        f'pool = "{data.pool}"\nheldout = "{data.heldout}"\n'
    )
    return folder


def unplayed(folder: Path, lines: str) -> RunFolder:
    folder.mkdir()
    (folder / "run.toml").write_text(f"[run]\n{lines}\n")
    return RunFolder(folder)


def test_before_a_night_is_over_its_minutes_say_whether_it_would_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, night = Begun(monkeypatch), unplayed(tmp_path / "first", "minutes = 90")
    assert not begun.within(1.0, night)
    assert begun.names == []
    assert "first, is not begun: a night takes about 1 h 30 min" in begun.said[0]
    assert begun.within(100.0, night)
    assert begun.names == ["first"]


def test_a_number_of_steps_says_nothing_before_one_is_measured_and_then_the_seconds_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, night = Begun(monkeypatch), unplayed(tmp_path / "first", "steps = 3\nminutes = 90")
    assert begun.within(1.0, night)
    assert begun.names == ["first"]
    played = set_steps(make_night(tmp_path, n_steps=8), 108)  # of 80 s each
    assert not begun.within(2.0, played)
    assert "night, is not begun: a night takes about 2 h 13 min" in begun.said[-1]
    assert begun.within(100.0, played)


class Failing:
    """Nights that end as they are told to, some after a phase that went well."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nights = [unplayed(tmp_path / name, "steps = 3") for name in ("one", "two", "three")]
        self.begun: list[str] = []
        self.said: list[str] = []
        self.ends: dict[str, Exception] = {}
        self.late: tuple[str, ...] = ()
        self.stopped_in = ""
        monkeypatch.setattr(several, "run_loop", self.run)

    def run(self, night: RunFolder, *rest: object) -> None:
        self.begun.append(night.name)
        if night.name == self.stopped_in:
            [wish] = [one for one in rest if isinstance(one, Wish)]
            wish.ask_finish()
        error = self.ends.get(night.name)
        if error is None or night.name in self.late:
            Journal(night.journal).append("phase_end", phase="start", exit=0)
        if error is not None:
            raise error

    def play(self, until: float | None = None) -> bool:
        return several.play_nights(self.nights, several.AS_SET, until, self.said.append, "go on")


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("step 2: the gradient's norm is nan"), 2),
        (Unavailable("the server hangs"), 4),
        (Shortage("set trainer.tokens_per_microbatch"), 5),
        (ChildBug("the train phase ended with exit code 1"), 1),
        (RuntimeError("no font for the curves"), 1),
    ],
)
def test_a_night_that_fails_on_its_way_ends_no_other_and_is_told_at_the_end(
    failing: Failing, error: Exception, code: int
) -> None:
    failing.ends, failing.late = {"one": error}, ("one",)
    with pytest.raises(NightsFailed) as told:
        failing.play()
    assert failing.begun == ["one", "two", "three"]
    assert (told.value.names, told.value.whole) == (frozenset({"one"}), True)
    name = "RuntimeError: " if type(error) is RuntimeError else ""
    assert f"one failed: {name}{error}" in failing.said
    assert str(told.value) == f"one failed: {name}{error}; `go on` goes on with it"
    assert told.value.exit_code == code


def test_an_arm_that_cannot_start_ends_no_other_where_the_night_before_went_well(
    failing: Failing,
) -> None:
    failing.ends = {"two": BadInput("no signal at this temperature")}
    with pytest.raises(NightsFailed, match="two failed: no signal at this temperature; `go on`"):
        failing.play()
    assert failing.begun == ["one", "two", "three"]


def test_what_every_night_would_meet_ends_a_sweep_at_once(failing: Failing) -> None:
    failing.ends = {"one": BadInput("no such model")}
    with pytest.raises(NightsFailed, match="no such model") as told:
        failing.play()
    assert failing.begun == ["one"]
    assert (told.value.exit_code, told.value.whole) == (2, False)


def test_a_disk_that_is_full_from_some_night_on_ends_a_sweep_where_the_next_cannot_start(
    failing: Failing,
) -> None:
    full = Shortage("no space left on this disk")
    failing.ends, failing.late = {"one": full, "two": full}, ("one",)
    told = r"one failed: no space.*two failed: no space.*with them"
    with pytest.raises(NightsFailed, match=told):
        failing.play()
    assert failing.begun == ["one", "two"]


def test_a_night_that_another_loop_plays_ends_a_sweep(failing: Failing) -> None:
    failing.ends = {"two": NotOwner("another loop owns run two")}
    with pytest.raises(NightsFailed, match="owns run two; `go on` goes on with it") as told:
        failing.play()
    assert failing.begun == ["one", "two"]
    assert (told.value.exit_code, told.value.whole) == (6, False)


def ended(night: RunFolder, at: float, error: int = 0) -> None:
    """A phase of a night ended a while ago."""
    head = {"schema": 1, "time": at, "pid": 1, "event": "phase_end"}
    with open(night.journal, "a", encoding="utf-8") as f:
        f.write(json.dumps({**head, "phase": "train", "exit": error}) + "\n")


def test_a_night_that_always_fails_at_once_takes_its_turn_after_the_others(
    failing: Failing,
) -> None:
    """Before them, each call would end with it."""
    ended(failing.nights[0], at=100)
    ended(failing.nights[1], at=200, error=2)
    failing.ends = {"two": BadInput("the gradient's norm is nan")}
    with pytest.raises(NightsFailed, match="two failed") as told:
        failing.play()
    assert failing.begun == ["one", "three", "two"]
    assert [said for said in failing.said if "night 2" in said] == ["night 2 of 3: two"]
    assert told.value.whole


def test_where_the_others_are_over_one_that_always_fails_at_once_leaves_none_out(
    tmp_path: Path, failing: Failing
) -> None:
    """So a sweep that halves goes on without it."""
    over = set_steps(make_night(tmp_path, n_steps=8), 8)
    ended(failing.nights[2], at=time.time(), error=2)
    failing.nights[:2] = [over]
    failing.ends = {"three": BadInput("the gradient's norm is nan")}
    with pytest.raises(NightsFailed, match="three failed") as told:
        failing.play()
    assert failing.begun == ["three"]
    assert told.value.whole


def test_a_night_that_fails_at_once_ends_no_other_where_one_went_well_in_an_earlier_call(
    failing: Failing,
) -> None:
    """Such as the call for the steps before, of a sweep that halves."""
    ended(failing.nights[2], at=100)
    failing.ends = {"one": BadInput("the gradient's norm is nan")}
    with pytest.raises(NightsFailed, match="one failed"):
        failing.play()
    assert failing.begun == ["one", "two", "three"]


def torn(tmp_path: Path) -> RunFolder:
    """A night of eight steps that are done, of which one file was not written whole."""
    folder = set_steps(make_night(tmp_path, n_steps=8), 8)
    assert is_over(folder)
    folder.summary(8).write_text('{"schema": 1, "st')
    return folder


def test_a_night_that_cannot_be_read_counts_as_failed_and_the_others_are_played(
    tmp_path: Path, failing: Failing
) -> None:
    night = torn(tmp_path)
    failing.nights.insert(0, night)
    with pytest.raises(NightsFailed, match=r"night failed: .*step-008/step\.json.*`go on`") as told:
        failing.play()
    assert failing.begun == ["one", "two", "three"]
    assert (told.value.names, told.value.whole, told.value.exit_code) == (
        frozenset({"night"}),
        True,
        2,
    )
    assert any(said.startswith("night failed: ") for said in failing.said)


def test_a_night_that_cannot_be_read_says_nothing_of_how_long_one_takes(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    whole = set_steps(make_night(tmp_path / "other", n_steps=4), 4)
    seconds = night_seconds([whole])
    assert seconds is not None
    assert night_seconds([torn(tmp_path), whole]) == seconds


def test_where_the_tasks_have_changed_no_further_night_is_begun(
    tmp_path: Path, failing: Failing
) -> None:
    """It would be played on the new ones, and could not be compared with those that are over."""
    night = make_night(tmp_path, n_steps=8)
    failing.nights.insert(0, set_steps(night, 8))
    heldout = Path(night.config.data.heldout)
    _, *others = heldout.read_bytes().splitlines(keepends=True)
    heldout.write_bytes(b"".join(others))
    with pytest.raises(NightsFailed, match="not the held-out set that run night") as told:
        failing.play()
    assert failing.begun == []
    assert not told.value.whole


def test_no_night_begins_after_a_ctrl_c_that_the_one_before_came_to_its_end_with(
    failing: Failing,
) -> None:
    """As in its last evaluation, after which no step is left that could be finished."""
    failing.stopped_in = "two"
    with pytest.raises(Interrupted, match=r"^stopped; `go on` goes on from here$"):
        failing.play()
    assert failing.begun == ["one", "two"]


def test_nor_after_one_in_a_phase_that_failed_which_is_told(failing: Failing) -> None:
    failing.stopped_in, failing.ends = "two", {"two": Unavailable("no engine")}
    with pytest.raises(Interrupted):
        failing.play()
    assert failing.begun == ["one", "two"]
    assert "two failed: no engine" in failing.said


def test_ctrl_c_while_a_night_is_read_is_no_failure_of_it(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*whatever: object) -> bool:
        raise Interrupted("interrupted")

    monkeypatch.setattr(several, "is_over", interrupted)
    with pytest.raises(Interrupted):
        failing.play()
    with pytest.raises(Interrupted):
        night_seconds(failing.nights)
    assert failing.begun == []


def test_a_sweep_is_played_in_turn_from_where_it_stopped(sweep: Path) -> None:
    first, second = nights(sweep)
    assert [is_over(first), is_over(second)] == [False, False]
    assert night_seconds([first, second]) is None

    none = grpo("sweep", "show", str(sweep))
    assert none.returncode == 2
    assert "no night is finished and evaluated yet; `" in none.stderr

    alone = grpo("run", str(first.path))  # as if the sweep had been stopped after it
    assert alone.returncode == 0, alone.stderr
    assert is_over(first)
    assert not is_over(second)
    trained = first.adapter(1).stat().st_mtime_ns

    short = grpo("sweep", "run", str(sweep), "--hours", "0")
    assert short.returncode == 0, short.stderr
    assert "turn_penalty-1-seed0, is not begun" in short.stdout + short.stderr
    assert f"`{typed()} sweep run {sweep}` goes on" in short.stdout + short.stderr
    assert not is_over(second)

    whole = grpo("sweep", "run", str(sweep))
    assert whole.returncode == 0, whole.stderr
    assert is_over(second)
    assert first.adapter(1).stat().st_mtime_ns == trained
    assert "turn_penalty-1 against turn_penalty-0" in whole.stdout
    assert (sweep / "sweep.html").is_file()
    for night in (first, second):
        assert Ledger(night.ledger).entries() == [], "nothing of a night is left running"

    # The start's arms are the same, so the second night took them over.
    events = [json.loads(line)["event"] for line in second.journal.read_text().splitlines()]
    assert "arm_taken_over" in events
    assert [len(RunReader(night).steps) for night in (first, second)] == [2, 2]


def typed() -> str:
    from scripts.base.invocation import typeable

    return typeable("`grpo x`").strip("`").removesuffix(" x")


@pytest.mark.parametrize(
    "key", ["rollout.max_turns", "engine.max_model_len", "eval.temperature", "data.heldout"]
)
def test_what_every_evaluation_depends_on_cannot_vary(tmp_path: Path, key: str) -> None:
    refused = grpo("sweep", "new", str(tmp_path / "sweep"), "--vary", f"{key}=1,2")
    assert refused.returncode == 2
    assert f"{key}: every arm's evaluation has to have the same one" in refused.stderr
    assert not (tmp_path / "sweep").exists()
