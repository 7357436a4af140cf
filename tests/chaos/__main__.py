"""`make chaos`: two hundred kills on the scripted engine, then twenty on the real vLLM.

Runs whole nights on the two-layer model until the kills are used up, checks each, and writes what
was seen to docs/chaos.md. Ends with exit 1 at the first night that is not as it should be.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.files import write_text
from scripts.run_folder import ROOT
from tests.chaos.night import Saboteur, Toll, alive, step_shas, survive, trained_twice
from tests.tiny_policy import make_tiny_policy, write_run

STEPS = 6
KILLS_A_NIGHT = 40
REAL_KILLS_A_NIGHT = 10


def main(
    kills: Annotated[int, typer.Option(help="On the scripted engine.")] = 200,
    real: Annotated[int, typer.Option(help="On the real vLLM.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the moments and the victims.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the table goes.")] = ROOT / "docs" / "chaos.md",
) -> None:
    """Kill nights until the kills are used up, and write what was seen."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        here = Path(scratch)
        policy = make_tiny_policy(here / "policy")
        calm = _night(here / "calm", policy)
        survive(calm, Saboteur(0, seed))
        scripted = [
            _killed(here / f"scripted-{i}", policy, n, seed + i, calm)
            for i, n in enumerate(_parts(kills, KILLS_A_NIGHT))
        ]
        on_vllm = [
            _killed(here / f"real-{i}", policy, n, seed + 1000 + i, None)
            for i, n in enumerate(_parts(real, REAL_KILLS_A_NIGHT))
        ]
    write_text(out, _page(scripted, on_vllm))
    print(out)


def _parts(total: int, most: int) -> list[int]:
    """`total` in parts of at most `most`."""
    return [min(most, total - done) for done in range(0, total, most)]


def _night(folder: Path, policy: tuple[Path, Path]) -> Path:
    folder.mkdir()
    engine: dict[str, object] = {"lifecycle": "hotswap"}
    return write_run(folder / "night", *policy, run={"steps": STEPS}, engine=engine)


def _killed(
    folder: Path, policy: tuple[Path, Path], kills: int, seed: int, calm: Path | None
) -> Toll:
    """One night with so many kills, checked. calm: what it must be equal to (scripted engine)."""
    night = _night(folder, policy)
    toll = survive(night, Saboteur(kills, seed), scripted=calm is not None)
    shas = step_shas(night)
    _require(len(shas) == STEPS + 1, f"{len(shas) - 1} steps of {STEPS}")
    _require(calm is None or shas == step_shas(calm), "another adapter than in the calm night")
    _require(trained_twice(night) == [], "a step was trained twice")
    _require(alive(night) == [], f"left running: {alive(night)}")
    print(f"{time.strftime('%H:%M:%S')} {folder.name}: {toll.kills} kills, {toll.seconds:.0f} s")
    return toll


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise SystemExit(f"chaos: {why}")


def _page(scripted: list[Toll], on_vllm: list[Toll]) -> str:
    lines = [
        "# Chaos",
        "",
        "Written by `make chaos`: nights on the two-layer model, killed with SIGKILL right after",
        "journal lines and at random moments, started again with the same command until done.",
        "Checked after every kill: every file with its final name can be read, and its hashes",
        f"match. Checked at the end: all {STEPS} steps, none trained twice, nothing left running;",
        "on the scripted engine every adapter equal to the byte to that of a night left in peace.",
        "",
        "| engine | nights | kills | starts | minutes |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for name, tolls in (("scripted", scripted), ("vLLM", on_vllm)):
        kills, starts = sum(t.kills for t in tolls), sum(t.starts for t in tolls)
        minutes = sum(t.seconds for t in tolls) / 60
        lines.append(f"| {name} | {len(tolls)} | {kills} | {starts} | {minutes:.0f} |")
    for title, pick in (("victim", "victims"), ("moment", "moments")):
        counts: Counter[str] = sum((getattr(t, pick) for t in scripted + on_vllm), Counter())
        lines += ["", f"| {title} | kills |", "| :-- | --: |"]
        lines += [f"| {name} | {n} |" for name, n in counts.most_common()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
