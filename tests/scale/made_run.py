"""A run of any size, made through the real records, the real bundle writer and the real summaries.

Only the episodes are made up: their shape is that of the reference night after its twentieth step
(four to five turns on average, a dozen sampled tokens a turn), their grades are random, and their
logprobs have all digits. Rewards, advantages, groups, bundles, step.json, timings.json, journal and
evaluations are made by the code that makes them in a night.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from fieldkit.codec import encode, encode_group
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.files.atomic import sha256_file, sha256_text, write_json, write_text
from fieldkit.files.sharded import write_records
from fieldkit.records import Action, ActionKind, StopReason, Task, Trajectory, Turn
from fieldkit.training.adapter import CONFIG_FILE, WEIGHTS_FILE
from reward.reward import Reward
from rollout.arm import TRAJECTORIES, settings_sha, summarise, tasks_sha, write_arm
from rollout.group import make_group
from rollout.settings import EpisodeSettings
from scripts.phases.summary import step_summary
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.manifest import manifest_of
from scripts.run.timings import Segment, StepTimings, write_timings
from tests.scripts.evals import step
from tests.scripts.made_night import write_tasks
from trainer.checkpoint import OPTIMIZER_FILE, STATE_FILE

REWARD = Reward()
TEMPLATES = 1000
"""Different episodes. One comes again after all others, which is further than zstd looks back."""

EVAL_EVERY = 25
HELD_OUT = 158
SYSTEM_IDS, TASK_IDS, TURN_IDS, SAMPLED = 60, 26, 14, 14
_TEXT = """
wc sort uniq grep cat list report notes draft island banana maple marble harbor copper sources
outline inventory total count lines error first second name date 4 17 63 -l -n > | <
"""
WORDS = tuple(_TEXT.split())
_FIGURES = """
n_tokens n_scored_tokens n_trajectories n_used optimizer_steps loss policy_loss kl clipped_share
entropy grad_norm lr delta_l2 delta_served_l2 delta_max delta_share sampler_mean_abs sampler_max_abs
tokens_per_second n_input_tokens n_micro_batches held_back weight_mean weight_max advantage_mean
advantage_std training_bits
"""
"""What a train.json holds, by name."""


@dataclass(frozen=True)
class Size:
    """What a run is made of: tasks in the pool, B groups a step of K episodes each, turns an
    episode, between fewest and most, and ids that are read after each turn."""

    pool: int = 10_000
    batch: int = 250
    group: int = 4
    turns: tuple[int, int] = (2, 7)
    read: int = TURN_IDS

    @property
    def episodes(self) -> int:
        """Episodes a step."""
        return self.batch * self.group


def task(n: int, prefix: str = "pool") -> Task:
    """A task like those of data/pool.jsonl."""
    name = f"{prefix}-writer-{n:05d}"
    rng = random.Random(name)
    content = "".join(f"{rng.choice(WORDS)}\n" for _ in range(12))
    return Task(
        task_id=name,
        env="clawgym",
        prompt=f"Count the lines of notes-{n}.md and put just the number in total-{n}.txt.",
        info={
            "persona": f"writer-{n % 8}",
            "intent": "keep the notes of a book in order",
            "workspace_seed": {
                "files": [{"path": f"notes-{n}.md", "kind": "text", "content": content}]
            },
            "skills_required": ["count_lines"],
            "verifiable_assertions": [
                {"kind": "file_exists", "path": f"total-{n}.txt"},
                {"kind": "file_unchanged", "path": f"notes-{n}.md"},
            ],
            "difficulty": ("easy", "middle", "hard")[n % 3],
            "estimated_steps": 1,
            "oracle": [f"wc -l < notes-{n}.md > total-{n}.txt"],
            "unseen_template": n % 4 == 0,
        },
    )


@cache
def templates(turns: tuple[int, int], read: int) -> tuple[Trajectory, ...]:
    """Episodes without a task."""
    rng = random.Random(0)
    return tuple(_template(rng, rng.randint(*turns), read) for _ in range(TEMPLATES))


def _template(rng: random.Random, n_turns: int, read: int) -> Trajectory:
    def ids(n: int) -> tuple[int, ...]:
        return tuple(min(49_151, int(rng.paretovariate(0.35))) for _ in range(n))

    system = tuple(random.Random(1).randrange(49_152) for _ in range(SYSTEM_IDS))
    prompt = system + ids(TASK_IDS)
    turns = []
    for _ in range(n_turns):
        n = rng.randint(SAMPLED - 5, SAMPLED + 5)
        command = " ".join(rng.choices(WORDS, k=5))
        completion = ids(n)
        turns.append(
            Turn(
                prompt_ids=prompt,
                completion_ids=completion,
                logprobs=tuple(-(rng.expovariate(1.0) ** 4) / 100 for _ in range(n)),
                text=f"```bash\n{command}\n```",
                action=Action(ActionKind.RUN, command),
                observation=" ".join(rng.choices(WORDS, k=4)),
                exit_code=0,
                reward=None,
                finish_reason="stop",
                policy_version="night-v0",
                seed=rng.getrandbits(48),
                seconds=rng.uniform(0.1, 3.0),
            )
        )
        prompt = (*prompt, *completion, *ids(read))
    passed = rng.random() < 0.5
    results = (
        AssertionResult("file_exists", "total.txt", rng.random() < 0.8, ""),
        AssertionResult("file_unchanged", "notes.md", passed, "" if passed else "changed"),
    )
    stop = StopReason.TASK_COMPLETE if rng.random() < 0.7 else StopReason.MAX_TURNS
    metrics = dict.fromkeys(
        ("tokens", "commands", "commands_failed", "no_action_turns", "seconds"), 1.0
    )
    sampling = EpisodeSettings().sampling
    return Trajectory("", 0, 0, "", sampling, tuple(turns), stop, Grade(results), 0.0, metrics)


def _played(
    template: Trajectory, task: Task, k: int, adapter: str, reward: Reward, seed: int
) -> Trajectory:
    paid = reward.paid(template)
    return replace(paid, task_id=task.task_id, k=k, seed=seed, adapter_sha=adapter)


def adapter_of(n: int) -> str:
    """The hash of step n's adapter."""
    return _sha_of(_adapter_files(n))


def _adapter_files(n: int) -> dict[str, bytes]:
    return {WEIGHTS_FILE: f"weights {n}".encode(), CONFIG_FILE: b"{}"}


def _state_files(n: int) -> dict[str, bytes]:
    return {OPTIMIZER_FILE: f"state {n}".encode(), STATE_FILE: b"{}"}


def _sha_of(files: Mapping[str, bytes]) -> str:
    """As `fieldkit.training.adapter.files_sha`."""
    listed = [f"{name} {hashlib.sha256(data).hexdigest()}\n" for name, data in files.items()]
    return sha256_text("".join(listed))


def write_step(folder: RunFolder, size: Size, n: int) -> str:
    """Write step n's bundle, timings.json and step.json; return the bundle's hash."""
    rng = random.Random(n)
    shuffled = rng.sample(templates(size.turns, size.read), TEMPLATES)
    chosen = rng.sample(range(size.pool), size.batch)
    groups = []
    for i, number in enumerate(chosen):
        at = [shuffled[(i * size.group + k) % TEMPLATES] for k in range(size.group)]
        one = task(number)
        played = [
            _played(t, one, k, adapter_of(n - 1), REWARD, rng.getrandbits(48))
            for k, t in enumerate(at)
        ]
        groups.append(make_group(n, one, played, REWARD))
    folder.step(n).mkdir(exist_ok=True)
    sha = write_records(folder.bundle(n), map(encode_group, groups))
    timings = _timings(n)
    write_timings(folder.timings(n), timings)
    trained = {
        "outcome": "TRAINED",
        "parent_sha": adapter_of(n - 1),
        "adapter_sha": adapter_of(n),
        "optimizer_sha": _sha_of(_state_files(n)),
        "bundle_sha": sha,
        "train": _figures(rng),
    }
    summary = step_summary(n, groups, trained, timings)
    write_text(folder.summary(n), encode(summary) + "\n")
    return sha


def _figures(rng: random.Random) -> dict[str, float]:
    return {name: rng.random() for name in _FIGURES.split()}


def _timings(n: int) -> StepTimings:
    if n == 0:
        return StepTimings(0, (Segment("eval base", "1", 0, 100, {"eval": 98.0}),))
    began = 100.0 + 80 * n
    parts = {"startup": 2.0, "verify": 0.5, "engine": 1.0, "rollout": 40.0}
    rollout = Segment("rollout", "1", began, began + 45, parts)
    train = Segment("train", "1", began + 45, began + 80, {"trainer_load": 5.0, "gradient": 29.0})
    return StepTimings(n, (rollout, train))


class MadeRun:
    """A run folder that grows."""

    def __init__(
        self, root: Path, size: Size, on_step: Callable[[int], None] = lambda n: None
    ) -> None:
        self.size = size
        self.root = root
        self.on_step = on_step
        self.folder = RunFolder(root / "night")
        self.steps = 0
        self.heldout = tuple(task(n, "held") for n in range(HELD_OUT))

    def begin(self) -> None:
        """Write run.toml, the task files, the manifest, step-000 and the first arms."""
        self.folder.path.mkdir(parents=True)
        pool = write_tasks(self.root / "pool.jsonl", [task(n) for n in range(self.size.pool)])
        heldout = write_tasks(self.root / "heldout.jsonl", self.heldout)
        self.folder.config.write_text(
            f'[run]\nsteps = 2000\neval_every = {EVAL_EVERY}\n\n[data]\npool = "{pool}"\n'
            f'heldout = "{heldout}"\nfinal = ""\n\n[rollout]\ntasks_per_step = {self.size.batch}\n'
            f"group_size = {self.size.group}\n",
            encoding="utf-8",
        )
        config = read_config(self.folder.config)
        self._limits = config.rollout.at(config.eval.temperature)
        evaluation = {
            "tasks_sha": tasks_sha(self.heldout),
            "settings_sha": settings_sha(self._limits, config.eval.samples),
        }
        model = {"dir": "/models/none", "files": {}}
        start = {"sha": adapter_of(0), "other_base": None}
        write_json(self.folder.manifest, manifest_of(self.folder, config, model, start, evaluation))
        for name in ("do-nothing", "oracle", "base"):
            self._evaluate(name, name)
        self.folder.step(0).mkdir()
        write_timings(self.folder.timings(0), _timings(0))
        write_text(
            self.folder.summary(0),
            encode(replace(step(0, adapter_of(0)), seconds={"startup": 1.0})) + "\n",
        )
        self._evaluate("warm start", adapter_of(0))
        self.keep_weights()

    def grow(self, steps: int, workers: int = 2) -> None:
        """Add steps up to `steps` in all, with an arm every `EVAL_EVERY`."""
        new = range(self.steps + 1, steps + 1)
        with ProcessPoolExecutor(workers) as pool:
            write = partial(write_step, self.folder, self.size)
            written = pool.map(write, new)
            for n, bundle in zip(new, written, strict=True):
                self.steps = n
                self._enter("rollout", {self.folder.relative(self.folder.bundle(n)): bundle})
                self._enter("train", {self.folder.relative(self.folder.adapter(n)): adapter_of(n)})
                if n % EVAL_EVERY == 0:
                    self._evaluate(f"step {n}", adapter_of(n))
                self.on_step(n)
        self.keep_weights()

    def keep_weights(self) -> None:
        """Write the adapters that a phase looks at: the first and the last two; they are tiny."""
        for n in {0, max(0, self.steps - 1), self.steps}:
            _write_files(self.folder.adapter(n), _adapter_files(n))
            if n:
                _write_files(self.folder.trainer_state(n), _state_files(n))

    def _enter(self, phase: str, wrote: dict[str, str]) -> None:
        """What a phase writes into the journal, without a journal's fsync for each line."""
        head = {"schema": 1, "time": 1e9 + self.steps, "pid": 1}
        with open(self.folder.journal, "a", encoding="utf-8") as f:
            for entry in (
                {**head, "event": "phase_start", "phase": phase},
                {**head, "event": "phase_end", "phase": phase, "start": 1e9, "exit": 0,
                 "wrote": wrote},
            ):  # fmt: skip
                f.write(json.dumps(entry) + "\n")

    def _evaluate(self, arm: str, adapter: str) -> None:
        rng, episodes = random.Random(arm), templates(self.size.turns, self.size.read)
        played = [
            _played(rng.choice(episodes), t, 0, adapter, REWARD, rng.getrandbits(48))
            for t in self.heldout
        ]
        summary = summarise(
            played, arm=arm, tasks=self.heldout, settings=self._limits, samples=1, seconds=100.0
        )
        folder = self.folder.evals / summary.key
        write_arm(folder, played, summary)
        file = folder / TRAJECTORIES
        self._enter("eval", {self.folder.relative(file): sha256_file(file)})


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
