"""`python -m tests.second_model`: a short night of two models of different families, side by side.

Plays the same tasks with SmolLM2-135M and Gemma 3 270M (another architecture: sliding windows, a
vocabulary of 262,144), by turns on one machine, and writes their figures to docs/second-model.json
and docs/second-model.md. Gemma comes as a base model without a chat format, so it gets a warm start
first. A run or an adapter that is there is used again: the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldkit.files.atomic import write_json, write_text
from fieldkit.gate.memory import GIB
from scripts.base.checkout import ROOT
from scripts.prepare.model import PACKAGED
from tests.first_hour import machine

ADAPTERS = {"smol": "adapters/smol-warm", "gemma3-270m": "runs/gemma-warm"}
"""The adapter that each model's night starts from. Gemma's is made here and not committed."""

FIGURES: list[tuple[str, str, str]] = [
    ("parameters", "parameters, millions", ".0f"),
    ("trained", "of them trained, millions", ".2f"),
    ("vocabulary", "vocabulary", ",.0f"),
    ("sampled_tokens_per_second", "rollout, sampled tokens/s", ".0f"),
    ("trained_tokens_per_second", "training, tokens/s", ".0f"),
    ("rollout", "rollout, s a step", ".1f"),
    ("reference", "reference pass, s", ".1f"),
    ("gradient", "gradient, s", ".1f"),
    ("canary", "canary, s", ".1f"),
    ("trainer_load", "loading the trainer, s, first step", ".1f"),
    ("memory_forecast", "memory forecast, GiB", ".1f"),
    ("memory_used", "memory used at most, GiB", ".1f"),
    ("sampler_mean_abs", "mean difference of sampler and trainer, nats", ".4f"),
    ("mean_reward", "mean reward", ".2f"),
    ("pass_rate", "attempts that passed", ".0%"),
    ("stop_rate", "attempts that ended by themselves", ".0%"),
]
"""Key, what the table calls it, format. Figures of a step are the last one's: nothing starts in it.
"""


def main(
    steps: Annotated[int, typer.Option(min=1, help="GRPO steps of each model.")] = 2,
    demos: Annotated[int, typer.Option(min=8, help="Demonstrations of Gemma's warm start.")] = 320,
) -> None:
    """Make what is missing, play both nights, write and print the table."""
    for name, adapter in ADAPTERS.items():
        grpo("model", name)
        if not (ROOT / adapter / "adapter_config.json").is_file():
            grpo("sft", adapter, "--model", name, "--demos", str(demos))
            grpo("prove", adapter, "--model", name)
    nights = {name: night(name, steps) for name in ADAPTERS}
    for run in nights.values():
        grpo("run", str(run))
    found = {
        "made_by": f"python -m tests.second_model --steps {steps} --demos {demos}",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "steps": steps,
        "models": {name: figures(name, run) for name, run in nights.items()},
    }
    write_json(ROOT / "docs" / "second-model.json", found)
    write_text(ROOT / "docs" / "second-model.md", page(found))
    typer.echo(page(found))


def night(name: str, steps: int) -> Path:
    """The run folder of a model's short night: the default settings but for what makes it short."""
    run = ROOT / "runs" / f"second-model-{name}"
    if not (run / "run.toml").is_file():
        values = {
            "model.path": name,
            "model.adapter": ADAPTERS[name],
            "run.steps": steps,
            "run.eval_every": 0,
            "eval.tasks": 8,
            "eval.base": "never",
        }
        given = [word for k, v in values.items() for word in ("--set", f"{k}={v}")]
        grpo("new", run.name, *given)
    return run


def grpo(*words: str) -> None:
    """Its output goes to the terminal, since each call takes minutes."""
    subprocess.run([str(ROOT / ".venv" / "bin" / "grpo"), *words], cwd=ROOT, check=True)


def figures(name: str, run: Path) -> dict[str, float]:
    """What FIGURES shows of a run that has ended."""
    steps = [json.loads(p.read_text()) for p in sorted(run.glob("step-*/step.json"))]
    steps = [s for s in steps if s["step"] > 0]
    files = [run / f"step-{s['step']:03d}" / "timings.json" for s in steps]
    times = [json.loads(file.read_text())["seconds"] for file in files]
    journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    config = json.loads((PACKAGED[name].folder / "config.json").read_text())
    last, seconds = steps[-1], times[-1]
    trained = last["train"]
    n_sampled = last["mean_tokens"] * last["n_trajectories"]

    def most(event: str) -> float:
        return float(max(e["bytes"] for e in journal if e["event"] == event)) / GIB

    return {
        "parameters": trained["all_parameters"] / 1e6,
        "trained": trained["trainable_parameters"] / 1e6,
        "vocabulary": config["vocab_size"],
        "sampled_tokens_per_second": n_sampled / seconds["rollout"],
        "trained_tokens_per_second": trained["tokens_per_second"],
        **{key: seconds.get(key, 0.0) for key in ("rollout", "reference", "gradient", "canary")},
        "trainer_load": times[0]["trainer_load"],
        "memory_forecast": most("memory_forecast"),
        "memory_used": most("memory_used"),
        "sampler_mean_abs": trained["sampler_mean_abs"],
        **{key: last[key] for key in ("mean_reward", "pass_rate", "stop_rate")},
    }


def page(found: dict[str, Any]) -> str:
    """docs/second-model.md."""
    models = found["models"]
    lines = [
        "# A second model",
        "",
        f"`make second-model` (`{found['made_by']}`) on {found['date']}, {found['machine']}: "
        f"{found['steps']} steps of each model on the same tasks, with that day's default "
        "settings. Figures of a step are those of the last.",
        "",
        f"| | {' | '.join(PACKAGED[name].name for name in models)} |",
        f"| :-- |{' --: |' * len(models)}",
    ]
    for key, told, how in FIGURES:
        cells = " | ".join(_cell(m[key], how) for m in models.values())
        lines.append(f"| {told} | {cells} |")
    return "\n".join(lines) + "\n"


def _cell(value: float, how: str) -> str:
    return format(value, how).replace("%", " %")


if __name__ == "__main__":
    typer.run(main)
