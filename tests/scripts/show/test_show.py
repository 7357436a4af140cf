"""`grpo show` on a run that was played for this test: real tokenizer, real sandbox, no engine."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fieldkit.codec import encode, read_bundle, read_trajectories
from fieldkit.errors import BadInput, NotOwner
from fieldkit.files.atomic import sha256_file
from rollout.arm import BASE_ADAPTER, evaluate_arm
from rollout.bundle import roll_out
from rollout.engine.lifecycle import HOTSWAP
from rollout.engine.target import Served
from rollout.settings import EpisodeSettings
from scripts.base.checkout import ROOT
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from scripts.show.show import Request, show
from scripts.words import quantities
from tests.rollout.scripted import (
    SHAPED,
    Script,
    ScriptedSampler,
    bash,
    player,
    replies,
    sandbox_settings,
    write_task,
)
from tests.scripts.evals import step

HELD, POOL = write_task("alpha"), write_task("beta")
OTHER = write_task("gamma")
LIMITS = EpisodeSettings(max_turns=4, max_new_tokens=64, temperature=0.2)

RUN_TOML = """
[data]
heldout = "{heldout}"
pool = "{pool}"

[rollout]
max_turns = 4
max_new_tokens = 64

[sandbox]
kind = "{kind}"
"""


def habit(conversation: str, turn: int, seed: int) -> str:
    """Works, and goes on looking until the turns are used up."""
    return bash("echo done > alpha.txt") if turn == 0 else bash("ls")


def mixed(conversation: str, turn: int, seed: int) -> str:
    """Every other attempt does the work; all of them stop."""
    if turn:
        return "TASK_COMPLETE"
    return bash("echo done > beta.txt" if seed % 2 else "cat notes.txt")


async def make_run(root: Path) -> Path:
    """A run of one step with a warm start, a base and a step-1 evaluation."""
    folder = RunFolder(root / "night")
    folder.step(0).mkdir(parents=True)
    folder.step(1).mkdir()
    files = {"heldout": [HELD, OTHER], "pool": [POOL]}
    paths = {name: root / f"{name}.jsonl" for name in files}
    for name, tasks in files.items():
        paths[name].write_text("".join(encode(t) + "\n" for t in tasks))
    folder.config.write_text(RUN_TOML.format(**paths, kind=sandbox_settings().kind))
    folder.summary(0).write_text(encode(step(0, "sha-0")))
    folder.summary(1).write_text(encode(step(1, "sha-1")))
    arms: dict[str, tuple[str, Script]] = {
        "base": (BASE_ADAPTER, replies("I am a helpful assistant.")),
        "warm start": ("sha-0", habit),
        "step 1": ("sha-1", replies(bash("echo done > alpha.txt"), "TASK_COMPLETE")),
    }
    for arm, (sha, script) in arms.items():
        one = player(root, script, adapter_sha=sha, settings=LIMITS)
        await evaluate_arm(arm, [HELD, OTHER], player=one, evals=folder.evals)
    await roll_out(
        1,
        [POOL],
        player=player(root, mixed, adapter_sha="sha-0", reward=replace(SHAPED, credit="turn")),
        run_seed=0,
        group_size=4,
        partial=folder.partial(1),
        bundle=folder.bundle(1),
    )
    return folder.path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(asyncio.run(make_run(tmp_path_factory.mktemp("show"))))


def shown(run: str, *, width: int = 80, **wishes: Any) -> str:
    """What `grpo show` prints on a terminal of that width."""
    out = io.StringIO()
    show(Request(run, **wishes), Console(file=out, width=width, highlight=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


# --- the list -------------------------------------------------------------------------------------


def test_without_a_task_the_newest_arms_tasks_are_listed_with_what_came_of_them(run: str) -> None:
    listed = shown(run)
    assert "night, step 1 on the held-out set: 2 tasks" in listed
    row = next(line for line in listed.splitlines() if "alpha" in line).split()
    assert row == ["alpha", "✓", "2/2", "TASK_COMPLETE", "2", "0.97"]
    assert f"grpo show {run} --eval step-1 --task TASK" in listed.replace("\n", " ")
    everything = "there are: --step 1 … 1, --eval base, --eval warm-start, --eval step-1"
    assert everything in listed.replace("\n", " ")


def test_an_arm_is_found_by_its_name_with_or_without_dashes_and_by_its_key(run: str) -> None:
    by_name = shown(run, arm="warm start")
    assert "MAX_TURNS" in by_name
    keys = {f.parent.name for f in Path(run).glob("evals/*/eval.json")}
    assert by_name in {shown(run, arm=key) for key in keys}
    assert shown(run, arm="warm-start") == by_name


def test_an_adapter_that_grpo_eval_played_is_named_by_its_path_and_is_no_warm_start() -> None:
    evaluated, adapter = ROOT / "docs/default-night/development-0", "runs/night-0/step-029/adapter"
    said = shown(str(evaluated))
    assert said.startswith(f"development-0, {adapter} on the held-out set: 150 tasks")
    assert f"there are: --eval {adapter}" in said
    for word in (adapter, "warm-start", "warm start"):
        assert shown(str(evaluated), arm=word) == said


def test_a_steps_list_has_every_attempt_with_its_advantage(run: str) -> None:
    listed = shown(run, step=1)
    rows = [line.split() for line in listed.splitlines() if "beta" in line]
    group = read_bundle(Path(run) / "step-001" / "trajectory_bundle.jsonl")[0]
    assert [r[1] for r in rows] == ["0", "1", "2", "3"]
    assert [r[-1] for r in rows] == [quantities.signed(a, 2) for a in group.advantages]
    assert len(set(group.advantages)) > 1


# --- one attempt ----------------------------------------------------------------------------------


def test_the_newest_attempt_at_a_task_is_shown_turn_by_turn(run: str) -> None:
    told = shown(run, task="alpha")
    assert "step 1 on the held-out set" in told
    assert "<|im_start|>user\n  Write the word done into alpha.txt.<|im_end|>" in told
    order = ["turn 1", "progress +0.50", "$ echo done > alpha.txt", "(no output)", "turn 2"]
    places = [told.index(words) for words in order]
    assert places == sorted(places)
    assert "✓ file_contents_contain alpha.txt\n  done" in told


def test_a_task_that_was_only_trained_on_is_found_in_its_step(run: str) -> None:
    told = shown(run, task="beta", k=2)
    group = read_bundle(Path(run) / "step-001" / "trajectory_bundle.jsonl")[0]
    assert "step 1, k = 2 of 4" in told
    assert group.turn_advantages is not None
    for value in group.turn_advantages[2]:
        assert f"advantage {quantities.signed(value, 2)}" in told


def test_tokens_show_every_sampled_id(run: str) -> None:
    told = shown(run, task="alpha", arm="step 1", tokens=True)
    words = set(told.split())
    file = next(
        f for f in Path(run).glob("evals/*/trajectories.jsonl") if '"sha-1"' in f.read_text()
    )
    ids = {i for t in read_trajectories(file)[0].turns for i in t.completion_ids}
    assert {str(i) for i in ids} <= words
    assert "ln p at T = 0.2" in told.replace("\n", " ")


def test_looking_changes_nothing_in_the_run(run: str) -> None:
    def state() -> dict[Path, str]:
        return {p: sha256_file(p) for p in Path(run).rglob("*") if p.is_file()}

    before = state()
    shown(run)
    shown(run, task="alpha", random=True, base=True, tokens=True)
    assert state() == before


def test_a_task_whose_record_is_gone_can_still_be_looked_at(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.show.show.find_task", lambda files, task_id: None)
    assert "$ echo done > alpha.txt" in shown(run, task="alpha")
    with pytest.raises(BadInput, match="have no task alpha any more"):
        shown(run, task="alpha", random=True)


def test_a_run_whose_model_is_gone_is_shown_without_its_tokens(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    assert "Write the word done into alpha.txt." in shown(run, task="alpha")
    with pytest.raises(BadInput, match=r"tokenizer\.json.*without --tokens"):
        shown(run, task="alpha", tokens=True)


# --- what a person can get wrong ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"task": "alhpa"}, ["nearest: alpha", "grpo show"]),
        ({"task": "alhpa", "arm": "base"}, ["nearest: alpha", "--eval base` lists them"]),
        ({"task": "bet", "step": 1}, ["nearest: beta", "--step 1` lists them"]),
        ({"task": "beta", "k": 7}, ["played 4 times", "--k 0, 1, 2, 3"]),
        ({"step": 2}, ["step 2 has no rollouts", "--step 1"]),
        ({"arm": "step 9"}, ["'step 9'", "--eval warm-start"]),
        ({"step": 1, "arm": "base"}, ["name one of the two"]),
        ({"random": True}, ["--random needs --task"]),
        ({"k": 1}, ["--k needs --task"]),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    run: str, wishes: dict[str, Any], says: list[str]
) -> None:
    with pytest.raises(BadInput) as refused:
        shown(run, **wishes)
    for words in says:
        assert words in str(refused.value)


def test_a_run_that_has_played_nothing_says_what_plays(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "run.toml").write_text("")
    with pytest.raises(BadInput, match="nothing has been played to its end yet; `grpo run"):
        shown(str(tmp_path / "night"))


def test_a_broken_line_is_named_with_its_number(run: str, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "night")
    bundle = copy / "step-001" / "trajectory_bundle.jsonl"
    bundle.write_text("{" + bundle.read_text())
    with pytest.raises(BadInput, match=r"trajectory_bundle\.jsonl:1"):
        shown(str(copy), step=1)


def test_the_command_prints_the_list_and_ends_with_the_contracts_codes(run: str) -> None:
    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "scripts.cli", "show", run, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert "alpha" in typed().stdout
    refused = typed("--task", "alhpa")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "nearest: alpha" in refused.stderr


# --- beside it ------------------------------------------------------------------------------------


def test_a_random_policy_plays_the_same_task_beside_it(run: str) -> None:
    told = shown(run, task="alpha", random=True, width=140)
    assert any(
        "step 1 on the held-out set" in line and "a random policy" in line
        for line in told.splitlines()
    )
    assert told == shown(run, task="alpha", random=True, width=140)


def test_the_base_model_is_read_where_it_was_evaluated(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("an engine was asked for")

    monkeypatch.setattr("scripts.show.show.play_base", started)
    told = shown(run, task="alpha", base=True)
    assert "base, as evaluated" in told
    assert "I am a helpful assistant." in told


class _Engine(ScriptedSampler):
    """What `rollout.engine.router` talks to, without a server behind it."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(replies("I am the base."))

    async def __aenter__(self) -> _Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands where the engine stands; what it was asked to serve."""
    calls: list[tuple[Any, ...]] = []

    def ensure(
        run_dir: Path, model: Path, settings: object, adapter: Path | None, *rest: Any, **more: Any
    ) -> tuple[Served, ...]:
        calls.append((adapter, rest[0], more["keep"]))
        return (Served("", "", "base", "base", None, 0, HOTSWAP.name, "", None, 0.0),)

    monkeypatch.setattr("scripts.phases.make_player.ensure_engine", ensure)
    monkeypatch.setattr("rollout.engine.router.EngineClient", _Engine)
    return calls


def test_the_base_model_is_played_where_it_was_not_evaluated(
    run: str, asked: list[tuple[Any, ...]]
) -> None:
    told = shown(run, task="beta", base=True)
    assert "base, played now" in told
    assert "I am the base." in told
    adapter, version, keep = asked[0]
    assert (adapter, version) == (None, "base")
    assert keep == {"night-v1": Path(run) / "step-001" / "adapter"}


def test_while_a_loop_works_the_base_model_is_not_played(
    run: str, asked: list[tuple[Any, ...]]
) -> None:
    with run_lock(Path(run) / "lock"), pytest.raises(NotOwner):
        shown(run, task="beta", base=True)
    assert not asked


def test_attempts_that_were_graded_otherwise_are_not_set_side_by_side(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = HELD.info["verifiable_assertions"][:1]
    changed = replace(HELD, info={**HELD.info, "verifiable_assertions": fewer})
    monkeypatch.setattr("scripts.show.show.find_task", lambda files, task_id: changed)
    assert "✓ file_unchanged notes.txt" in shown(run, task="alpha")
    with pytest.raises(BadInput, match="assertions of alpha have changed"):
        shown(run, task="alpha", random=True)
