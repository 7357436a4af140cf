"""A whole step against TRL's `GRPOTrainer`: one environment class, through each one's own door.

The same model, warm start, chat template with tools, tasks, K, limits and β. The model was not
trained to call the tool, so most episodes are one reply; that spares TRL the repeated prompts of
later turns. They sample different replies, so the ratio is of sampled ids a second. TRL has loaded
its model before its step begins, so it is compared with our second step, whose trainer stayed.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial as bind
from importlib.util import find_spec
from pathlib import Path

from fieldkit.codec import encode
from fieldkit.files.atomic import write_text
from fieldkit.records import Task
from tests.bench import child
from tests.bench.letters import GAME, REWARD
from tests.bench.measurements import Measurements, Values, in_turn
from tests.bench.steps import run_of, step_of
from tests.bench.trainers import trainer_environment
from tests.bench.work import Work

PART = "step of a tool environment"
OURS, LATER, TRL = "this loop", "this loop, second step", "TRL's GRPOTrainer"
TOKENS = 64
"""Of a reply, and in TRL of all that follows the prompt."""


def measure(work: Work, taken: Measurements, rounds: int) -> None:
    """Measure all."""
    for name, round_ in in_turn((OURS, LATER, TRL), rounds):
        taken.take(PART, name, round_, bind(_step, work, name))


def _step(work: Work, name: str) -> Values:
    with tempfile.TemporaryDirectory() as temporary:
        tasks = Path(temporary) / "tasks.jsonl"
        _write_tasks(tasks, "Round", range(len(work.tasks)))
        return _trl(work, tasks) if name == TRL else _ours(work, tasks, 2 if name == LATER else 1)


def _write_tasks(file: Path, name: str, seeds: range) -> None:
    asked = "call the tool until you are told that you are right."
    tasks = [Task(f"guess-{n}", "guess", f"{name} {n}: {asked}", {"seed": n}) for n in seeds]
    write_text(file, "".join(encode(task) + "\n" for task in tasks))


def template() -> Path:
    """A chat template with tools that ships in TRL."""
    found = find_spec("trl")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("chat_templates") / "qwen2_5.jinja"


def _ours(work: Work, tasks: Path, last: int) -> Values:
    """What its last step took."""
    other = tasks.with_name("heldout.jsonl")
    _write_tasks(other, "Held-out round", range(1000, 1000 + len(work.tasks)))
    said = {
        "data.pool": f'"{tasks}"',
        "data.heldout": f'"{other}"',
        "model.chat_template": f'"{template()}"',
        "envs.guess.use": f'"{GAME}"',
        "envs.guess.ends": '"over"',
        "envs.guess.passes": '"letters >= 1"',
        "envs.guess.rewards": f'{{ "{REWARD}" = 1.0 }}',
        "rollout.max_new_tokens": str(TOKENS),
    }
    smaller = (*work.smaller, *(f"{key}={value}" for key, value in said.items()))
    with run_of(work, smaller) as folder:
        return [step_of(work, folder, n) for n in range(1, last + 1)][-1]


def _trl(work: Work, tasks: Path) -> Values:
    options: dict[str, object] = {
        "--model": work.model,
        "--adapter": work.adapter.path,
        "--tasks": tasks,
        "--template": template(),
        "--group-size": work.config.rollout.group_size,
        "--max-tokens": TOKENS,
        "--kl-coef": work.config.trainer.kl_coef,
    }
    words = [str(word) for pair in options.items() for word in pair]
    said = child.run("tests.bench.trl_step", *words, env=trainer_environment(work, stock=True))
    found: Values = json.loads(said.splitlines()[-1])  # TRL prints too
    return found
