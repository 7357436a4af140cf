"""docs/PERFORMANCE.md and docs/performance.json, from the measurements of a bench."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fieldkit.files.atomic import read_json
from scripts.words.table import Table
from tests.bench import against_trl, restarts, rollouts, steps, trainers
from tests.bench.measurements import Measurements, ratio_by_round
from tests.bench.work import Work

GOALS = {
    "rollout_vs_sequential": ("rollout, all in flight against one at a time", "≥ 5"),
    "rollout_vs_engine": ("rollout against the engine alone", "≥ 0.9"),
    "engine_vs_matmul": ("engine alone against matrix products", "≥ 0.6"),
    "trainer_vs_naive": ("trainer against the plain rebuild", "≥ 2.5"),
    "trainer_vs_matmul": ("trainer against matrix products", "≥ 0.75"),
    "trainer_peak_vs_naive": ("trainer's peak memory against the plain rebuild's", "≤ 0.5"),
    "step_vs_document": ("whole step against the document's loop", "≥ 5"),
    "step_vs_trl": ("whole step against TRL", "≥ 2"),
}
"""Ratios: what they compare, and what we aim at."""


def ratios(work: Work, taken: Measurements) -> dict[str, float]:
    """Each is the median over rounds of the ratio within a round; parts not measured are left out.

    Speeds are sampled ids a second in rollouts, and input ids a second in trainers. FLOPs: 2 for
    each weight of the linear layers and each input id forward, 2 more backward (the base is frozen,
    so only the gradient of the activations is taken); of the output layer for the ids that need it.
    """
    found: dict[str, Callable[[], float]] = {
        "rollout_vs_sequential": lambda: _faster(
            taken, rollouts.PART, rollouts.ALL, "1 in flight", _sampled_speed
        ),
        "rollout_vs_engine": lambda: _faster(
            taken, rollouts.PART, rollouts.ALL, rollouts.ENGINE, _sampled_speed
        ),
        "engine_vs_matmul": lambda: (
            statistics.median(engine_flops(work, taken)) / statistics.median(limits(taken))
        ),
        "trainer_vs_naive": lambda: _faster(
            taken, trainers.PART, trainers.OURS, trainers.PLAIN, _trained_speed
        ),
        "trainer_vs_matmul": lambda: ratio_by_round(trainer_flops(work, taken), limits(taken)),
        "trainer_peak_vs_naive": lambda: ratio_by_round(
            *(taken.of(trainers.PART, c, "peak_bytes") for c in (trainers.OURS, trainers.PLAIN))
        ),
        "step_vs_document": lambda: _faster(
            taken, steps.PART, steps.OURS, steps.DOCUMENT, _sampled_speed
        ),
        "step_vs_trl": lambda: _faster(
            taken, against_trl.PART, against_trl.OURS, against_trl.TRL, _sampled_speed
        ),
    }
    needs = {
        rollouts.PART: ("rollout_vs_sequential", "rollout_vs_engine"),
        trainers.PART: ("trainer_vs_naive", "trainer_vs_matmul", "trainer_peak_vs_naive"),
        steps.PART: ("step_vs_document",),
        against_trl.PART: ("step_vs_trl",),
    }
    measured = [name for part, names in needs.items() if taken.contestants(part) for name in names]
    if taken.contestants(rollouts.PART) and taken.contestants(trainers.PART):
        measured.append("engine_vs_matmul")
    return {name: round(found[name](), 3) for name in GOALS if name in measured}


Speed = Callable[[Measurements, str, str], list[float]]


def _faster(taken: Measurements, part: str, ours: str, theirs: str, speed: Speed) -> float:
    return ratio_by_round(speed(taken, part, ours), speed(taken, part, theirs))


def _sampled_speed(taken: Measurements, part: str, contestant: str) -> list[float]:
    sampled = taken.of(part, contestant, "sampled")
    return [n / s for n, s in zip(sampled, taken.of(part, contestant, "seconds"), strict=True)]


def _trained_speed(taken: Measurements, part: str, contestant: str) -> list[float]:
    names = ("inputs", "reference_seconds", "gradient_seconds")
    values = zip(*(taken.of(part, contestant, name) for name in names), strict=True)
    return [n / (reference + gradient) for n, reference, gradient in values]


def limits(taken: Measurements) -> list[float]:
    """FLOP/s of this machine's matrix products, by round."""
    return taken.of(trainers.PART, trainers.LIMIT, "flops")


def trainer_flops(work: Work, taken: Measurements) -> list[float]:
    """FLOP/s of forward + backward, by round."""
    layers, output = weights(work.model)
    names = ("inputs", "scored", "gradient_seconds")
    values = zip(*(taken.of(trainers.PART, trainers.OURS, n) for n in names), strict=True)
    return [4 * (layers * n + output * scored) / seconds for n, scored, seconds in values]


def engine_flops(work: Work, taken: Measurements) -> list[float]:
    """FLOP/s of the engine alone, by round."""
    layers, output = weights(work.model)
    names = ("read", "sampled", "seconds")
    values = zip(*(taken.of(rollouts.PART, rollouts.ENGINE, n) for n in names), strict=True)
    return [
        2 * (layers * (read + sampled) + output * sampled) / seconds
        for read, sampled, seconds in values
    ]


def weights(model: Path) -> tuple[int, int]:
    """Weights of the linear layers without the output layer, and of the output layer."""
    config = read_json(model / "config.json")
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    layer = 2 * queries * hidden + 2 * keys * hidden + 3 * hidden * inner
    return config["num_hidden_layers"] * layer, config["vocab_size"] * hidden


def page(work: Work, taken: Measurements, rounds: int) -> str:
    """The page."""
    about, settings = taken.about, work.config.rollout
    found = ratios(work, taken)
    goals = [
        (text, f"{found[name]:.2f}", goal) for name, (text, goal) in GOALS.items() if name in found
    ]
    parts = [
        Table("Ratios", ("what", "measured", "goal"), tuple(goals)),
        *(table(taken) for table in (_rollouts, _trainers, _sizes, _steps, _trl, _restarts)),
    ]
    tables = "\n".join(t.markdown() for t in parts if t.rows)
    return f"""# Performance

Written by `make bench` on {about["machine"]},
in {about["dtype"]}, {rounds} rounds. The contestants take turns, in the opposite order every second
round. A cell is the median of the rounds and, in brackets, the smallest and the largest; a ratio is
the median of the rounds' ratios. Every measurement, with the machine's load when it began, is in
`performance.json`. [fieldkit/performance.md](fieldkit/performance.md) has fieldkit's own figures.

The work is the first step of a default night: {len(work.tasks)} tasks,
{settings.group_size} attempts at each, at most {settings.max_turns} turns,
SmolLM2-135M-Instruct with a LoRA adapter.

{tables}"""


def _rollouts(taken: Measurements) -> Table:
    part = rollouts.PART
    rows = tuple(
        (
            name,
            _spread(taken.of(part, name, "seconds")),
            _spread(taken.of(part, name, "sampled")),
            _spread(_sampled_speed(taken, part, name)),
            _spread(_outside(taken, name)) if name in rollouts.IN_FLIGHT else "",
        )
        for name in taken.contestants(part)
    )
    columns = ("what", "seconds", "ids sampled", "ids a second", "ms a turn in worlds")
    return Table(
        "Rollout",
        columns,
        rows,
        (
            "One engine; its prefix cache is emptied before each. The engine alone gets the turns"
            " of a stored rollout again, as plain requests for as many ids. Milliseconds in worlds"
            " are the sandbox and its command, while other episodes sample.",
        ),
    )


def _outside(taken: Measurements, name: str) -> list[float]:
    seconds = taken.of(rollouts.PART, name, "command_seconds")
    turns = taken.of(rollouts.PART, name, "turns")
    return [1000 * s / n for s, n in zip(seconds, turns, strict=True)]


def _trainers(taken: Measurements) -> Table:
    part = trainers.PART
    rows = tuple(
        (
            name,
            *(
                _spread(_rate(taken, part, name, f"{kind}_seconds"))
                for kind in ("reference", "gradient")
            ),
            _spread([b / 2**30 for b in taken.of(part, name, "peak_bytes")]),
        )
        for name in (trainers.OURS, trainers.PLAIN)
        if taken.contestants(part)
    )
    note = (
        "Input ids a second. Each is a process of its own with the same threads and preloads;"
        " loading is left out. Both gradients have the same norm, but for rounding."
    )
    if taken.contestants(part):
        note += f" This machine's matrix products reach {_spread([f / 1e9 for f in limits(taken)])}"
        note += " GFLOP/s in the model's best shape."
    columns = ("what", "forward (reference)", "forward and backward", "peak GiB")
    return Table("Trainer", columns, rows, (note,))


def _sizes(taken: Measurements) -> Table:
    part = trainers.SIZES
    rows = tuple(
        (
            name,
            *(
                _spread(_rate(taken, part, name, f"{kind}_seconds"))
                for kind in ("reference", "gradient")
            ),
            _spread([b / 2**30 for b in taken.of(part, name, "peak_bytes")]),
        )
        for name in taken.contestants(part)
    )
    columns = ("micro-batch, dtype", "forward (reference)", "forward and backward", "peak GiB")
    return Table("Trainer by micro-batch and dtype", columns, rows, ("One round.",))


def _steps(taken: Measurements) -> Table:
    part = steps.PART
    names = ("seconds", "rollout", "train", "engine")
    rows = tuple(
        (name, *(_spread(taken.of(part, name, n)) for n in (*names, "sampled")))
        for name in taken.contestants(part)
    )
    columns = ("what", "seconds", "rollout", "trainer", "engine", "ids sampled")
    return Table(
        "A whole step",
        columns,
        rows,
        (
            "From a served adapter to the next one served and proven. The document's loop plays one"
            " episode after the other on the engine as it is installed, trains with the plain"
            " rebuild in a new process, and starts the engine again.",
        ),
    )


def _trl(taken: Measurements) -> Table:
    part = against_trl.PART
    rows = tuple(
        (name, *(_spread(taken.of(part, name, n)) for n in ("seconds", "sampled")))
        for name in taken.contestants(part)
    )
    return Table(
        "A step of a tool environment",
        ("what", "seconds", "ids sampled"),
        rows,
        (
            "`docs/styles/guess_trl.py:Guess` through each one's own door. TRL samples with the"
            " model that it trains: its server mode needs a GPU. The ratio is of ids a second.",
        ),
    )


def _restarts(taken: Measurements) -> Table:
    part = restarts.PART
    rows = tuple(
        (name, *(_spread(taken.of(part, name, n)) for n in ("seconds", "start_seconds")))
        for name in taken.contestants(part)
    )
    return Table("A new adapter", ("lifecycle", "seconds", "first start"), rows)


def _rate(taken: Measurements, part: str, name: str, seconds: str) -> list[float]:
    inputs = taken.of(part, name, "inputs")
    return [n / s for n, s in zip(inputs, taken.of(part, name, seconds), strict=True)]


def _spread(values: Sequence[float]) -> str:
    """Median, and the range where there is more than one."""
    middle = _short(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({_short(min(values))}–{_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def record(work: Work, taken: Measurements, rounds: int) -> dict[str, Any]:
    """docs/performance.json."""
    found = [
        {"part": part, "contestant": contestant, "round": round_, **values}
        for (part, contestant, round_), values in taken.found.items()
    ]
    ratio = ratios(work, taken)
    return {**taken.about, "rounds": rounds, "ratios": ratio, "measurements": found}
