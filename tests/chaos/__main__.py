"""`make chaos`: 200 kills on the scripted engine, 40 of nights with two servers and two trainer
processes, 20 on the real vLLM, and a night with one a step.

Runs whole nights on the two-layer model until all kills are done, checks each, and writes the
results to docs/chaos.md. The cost of a kill comes from a last night of twenty steps, with one kill
in each, compared with the same night undisturbed. docs/chaos.md and its numbers, docs/chaos.json,
are written after every night, so Ctrl-C loses only the unfinished night, and the same command
resumes. Exits with 1 at the first night that fails a check.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from fieldkit.files.atomic import read_json, write_json, write_text
from scripts.base.checkout import ROOT
from tests.chaos.night import (
    ON_VLLM,
    SCRIPTED,
    SEVERAL,
    OneAStep,
    Saboteur,
    Toll,
    Victim,
    alive,
    require_page,
    step_ends,
    step_shas,
    survive,
    trained_twice,
)
from tests.tiny_policy import make_tiny_policy, write_run

STEPS = 6
KILLS_A_NIGHT = 40
SEVERAL_KILLS_A_NIGHT = 20
REAL_KILLS_A_NIGHT = 10
SCRIPTED_LONGEST, ON_VLLM_LONGEST = 12.0, 30.0
"""Most seconds from a loop's start to its random moment: vLLM needs 15 s to be up."""


@dataclass(frozen=True)
class Price:
    """The cost in seconds of one kill in each of `steps` steps."""

    steps: int
    toll: Toll
    calm: float
    killed: float
    each: tuple[float, ...]
    """Extra seconds of each step compared with the undisturbed night."""


@dataclass(frozen=True)
class Wanted:
    """The arguments: kills of each kind of night, steps of the night with one kill each, seed."""

    kills: int
    several: int
    real: int
    steps: int
    seed: int


KINDS = {
    "scripted": "scripted",
    "several": "scripted, two servers, two ranks",
    "on_vllm": "vLLM",
}
"""The kinds of nights: fields of `Seen`, and how the page calls them."""


@dataclass
class Seen:
    """The results so far."""

    wanted: Wanted
    scripted: list[Toll] = field(default_factory=list)
    several: list[Toll] = field(default_factory=list)
    on_vllm: list[Toll] = field(default_factory=list)
    price: Price | None = None
    over: bool = False

    def by_kind(self) -> list[tuple[str, list[Toll]]]:
        """The nights of each kind, by the name of the kind on the page."""
        return [(title, getattr(self, name)) for name, title in KINDS.items()]

    def write(self, page: Path) -> None:
        """Write the page, and next to it its numbers."""
        write_json(page.with_suffix(".json"), _plain(self))
        write_text(page, _page(self))


def _plain(seen: Any) -> Any:
    """JSON-ready values; `dataclasses.asdict` would count the items of a Counter again."""
    if is_dataclass(seen):
        return {f.name: _plain(getattr(seen, f.name)) for f in fields(seen)}
    return [_plain(x) for x in seen] if isinstance(seen, list | tuple) else seen


def broken_off(page: Path, wanted: Wanted) -> Seen:
    """The results of an unfinished run with the same arguments; empty if there is none."""
    numbers = page.with_suffix(".json")
    raw = read_json(numbers) if numbers.exists() else None
    if raw is None or raw["wanted"] != _plain(wanted) or raw["over"]:
        return Seen(wanted)
    scripted, several, on_vllm = ([_toll(t) for t in raw[name]] for name in KINDS)
    return Seen(wanted, scripted, several, on_vllm)


def _toll(raw: dict[str, Any]) -> Toll:
    return Toll(Counter(raw["victims"]), Counter(raw["moments"]), raw["starts"], raw["seconds"])


def main(
    kills: Annotated[int, typer.Option(help="Kills on the scripted engine.")] = 200,
    several: Annotated[
        int, typer.Option(help="Kills of nights with two servers and two trainer processes.")
    ] = 40,
    real: Annotated[int, typer.Option(help="Kills on the real vLLM.")] = 20,
    steps: Annotated[int, typer.Option(help="Steps with one kill each; 0: none.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the moments and victims.")] = 0,
    out: Annotated[Path, typer.Option(help="Page to write.")] = ROOT / "docs" / "chaos.md",
) -> None:
    """Kill nights until all kills are done, check them, and write the results."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so SIGTERM stops the engine too
    out.parent.mkdir(parents=True, exist_ok=True)  # before minutes are spent, not after
    seen = broken_off(out, Wanted(kills, several, real, steps, seed))
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        here = Path(scratch)
        policy = make_tiny_policy(here / "policy")
        calm = _night(here / "calm", policy)
        if sum(t.kills for t in seen.scripted) < kills:
            survive(calm, Saboteur(0, seed))
        for i, n in _nights(kills, KILLS_A_NIGHT, seen.scripted):
            night = _night(here / f"scripted-{i}", policy)
            saboteur = Saboteur(n, seed + i, SCRIPTED, SCRIPTED_LONGEST)
            seen.scripted.append(_killed(night, saboteur, calm))
            seen.write(out)
        _require_all_hit(SCRIPTED, seen.scripted, kills)
        calm = _night(here / "calm-several", policy, several=True)
        if sum(t.kills for t in seen.several) < several:
            survive(calm, Saboteur(0, seed))
        for i, n in _nights(several, SEVERAL_KILLS_A_NIGHT, seen.several):
            night = _night(here / f"several-{i}", policy, several=True)
            saboteur = Saboteur(n, seed + 500 + i, SEVERAL, SCRIPTED_LONGEST)
            seen.several.append(_killed(night, saboteur, calm))
            seen.write(out)
        _require_all_hit(SEVERAL, seen.several, several)
        for i, n in _nights(real, REAL_KILLS_A_NIGHT, seen.on_vllm):
            night = _night(here / f"real-{i}", policy)
            saboteur = Saboteur(n, seed + 1000 + i, ON_VLLM, ON_VLLM_LONGEST)
            seen.on_vllm.append(_killed(night, saboteur, None))
            seen.write(out)
        _require_all_hit(ON_VLLM, seen.on_vllm, real)
        if steps:
            seen.price = _price(here, policy, steps, seed)
    seen.over = True
    seen.write(out)
    print(out)


def _require_all_hit(victims: Sequence[Victim], seen: Sequence[Toll], kills: int) -> None:
    """Require that every victim was hit, if there were twice as many kills as victims."""
    hit = sum((t.victims for t in seen), Counter[str]())
    never = [v.value for v in victims if hit[v.value] == 0]
    _require(not never or kills < 2 * len(victims), f"never hit: {', '.join(never)}")


def _nights(total: int, most: int, seen: Sequence[Toll]) -> Iterator[tuple[int, int]]:
    """Yield (number, most kills) of each night, until the nights in `seen` have `total` kills.

    A night may end before all of its kills, so kills are counted, not planned.
    """
    while (left := total - sum(t.kills for t in seen)) > 0:
        _require(not seen or seen[-1].kills > 0, "a night was over without a kill")
        yield len(seen), min(left, most)


def _night(
    folder: Path, policy: tuple[Path, Path], steps: int = STEPS, *, several: bool = False
) -> Path:
    """Write a run. several: with two servers and two trainer processes."""
    folder.mkdir()
    engine: dict[str, object] = {"lifecycle": "hotswap", "replicas": 1 + several}
    trainer: dict[str, object] = {"processes": 1 + several}
    return write_run(
        folder / "night", *policy, run={"steps": steps}, engine=engine, trainer=trainer
    )


def _killed(night: Path, saboteur: Saboteur, calm: Path | None) -> Toll:
    """Run and check one night with kills. calm: the night it must equal (scripted engine only)."""
    tell = _teller(night.parent.name)
    toll = survive(night, saboteur, scripted=calm is not None, tell=tell)
    _check(night, STEPS, calm)
    tell(f"over: {toll.kills} kills, {toll.seconds:.0f} s")
    return toll


def _price(here: Path, policy: tuple[Path, Path], steps: int, seed: int) -> Price:
    """Run the same night twice: undisturbed, and with one kill in every step."""
    calm, killed = (_night(here / f"{name}-{steps}", policy, steps) for name in ("calm", "killed"))
    peace = survive(calm, Saboteur(0, seed))
    usual = list(_durations(calm))
    _teller(f"calm-{steps}")(f"over: {peace.seconds:.0f} s")
    saboteur = OneAStep(killed, steps, median(usual), seed)
    toll = survive(killed, saboteur, tell=_teller(f"killed-{steps}"))
    _check(killed, steps, calm)
    _require(saboteur.hit_steps == set(range(1, steps + 1)), f"killed in {saboteur.hit_steps}")
    _require(toll.kills == steps, f"{toll.kills} kills in {steps} steps")
    for night in (calm, killed):
        require_page(night, steps)
    each = tuple(k - u for k, u in zip(_durations(killed), usual, strict=True))
    return Price(steps, toll, peace.seconds, toll.seconds, each)


def _durations(night: Path) -> Iterator[float]:
    """Seconds from the end of one step to the end of the next."""
    return (b - a for a, b in pairwise(step_ends(night)))


def _check(night: Path, steps: int, calm: Path | None) -> None:
    """Check a finished night."""
    shas = step_shas(night)
    _require(len(shas) == steps + 1, f"{len(shas) - 1} steps of {steps}")
    _require(calm is None or shas == step_shas(calm), "another adapter than in the calm night")
    _require(trained_twice(night) == [], "a step was trained twice")
    _require(alive(night) == [], f"left running: {alive(night)}")


def _teller(name: str) -> Callable[[str], None]:
    """A function that prints a progress line of the named night."""
    return lambda line: print(f"{time.strftime('%H:%M:%S')} {name}: {line}", flush=True)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise SystemExit(f"chaos: {why}")


def _page(seen: Seen) -> str:
    lines = [
        "# Chaos",
        "",
        "Written by `make chaos`: nights on the two-layer model, killed with SIGKILL right after",
        "journal lines and at random moments, started again with the same command until done.",
        "Checked whenever a loop had ended: every file with its final name can be read, its hashes",
        f"match. Checked at the end: all {STEPS} steps, none trained twice, nothing left running;",
        "on the scripted engine every adapter equal to the byte to that of a night left in peace.",
        "A rank is one of several trainer processes that take a step together.",
        "",
        "| engine | nights | kills | starts | minutes |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for name, tolls in seen.by_kind():
        kills, starts = sum(t.kills for t in tolls), sum(t.starts for t in tolls)
        minutes = sum(t.seconds for t in tolls) / 60
        lines.append(f"| {name} | {len(tolls)} | {kills} | {starts} | {minutes:.0f} |")
    lines += _counted("victim", {n: [t.victims for t in ts] for n, ts in seen.by_kind()})
    lines += _counted("moment", {n: [t.moments for t in ts] for n, ts in seen.by_kind()})
    return "\n".join(lines + (_price_lines(seen.price) if seen.price else [])) + "\n"


def _counted(title: str, by_kind: Mapping[str, Iterable[Counter[str]]]) -> list[str]:
    """A table of kills by `title` and kind of night."""
    sums = {kind: sum(counts, Counter[str]()) for kind, counts in by_kind.items()}
    names = [name for name, _ in sum(sums.values(), Counter[str]()).most_common()]
    return [
        "",
        f"| {' | '.join((title, *sums))} |",
        f"| :-- |{' --: |' * len(sums)}",
        *(f"| {' | '.join((name, *(f'{s[name]}' for s in sums.values())))} |" for name in names),
    ]


def _price_lines(p: Price) -> list[str]:
    lost = p.killed - p.calm
    hit = ", ".join(f"{name} {n}" for name, n in p.toll.victims.most_common())
    return [
        "",
        "## What a kill costs",
        "",
        f"A night of {p.steps} steps on the scripted engine with one kill in every step, at a",
        f"random moment of it, beside the same night left in peace. It ended with all {p.steps}",
        "steps, every adapter equal to the byte, a page and evidence that know of every step, and",
        f"nothing left running. Victims: {hit}.",
        "",
        "| night | seconds |",
        "| :-- | --: |",
        f"| left in peace | {p.calm:.0f} |",
        f"| one kill a step | {p.killed:.0f} |",
        f"| lost | {lost:.0f} |",
        f"| lost a kill, mean | {lost / p.steps:.1f} |",
        f"| lost a kill, median of the steps | {median(p.each):.1f} |",
        f"| lost a kill, most | {max(p.each):.1f} |",
        "",
        "Lost is what the victim had done since its last finished episode or file, and starting it",
        "again, its engine with it where that was hit.",
    ]


if __name__ == "__main__":
    typer.run(main)
