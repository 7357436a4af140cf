"""`python -m tests.same_night BEFORE AFTER`: whether two checkouts play and tell the same night.

A change to the house that must not change what it does is held to that here: both checkouts play
the same nights on the scripted engine, which answers equally to the last bit, and everything that
they wrote is compared but for times and versions. Then both read the first one's run folder with
every command that only looks, and what they print and write is compared to the byte. Prints what
differs; ends with exit 1 where anything does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tests.tiny_policy import make_tiny_policy, write_run

NIGHTS: dict[str, dict[str, dict[str, object]]] = {
    "credit by turn, SGD": {
        "run": {"steps": 3, "eval_every": 2, "preflight": True},
        "advantages": {"credit": "turn", "scale": "mean"},
        "trainer": {"optimizer": "sgd", "lr": 4.0, "clip_norm": 0.03},
    },
    "credit by episode, AdamW": {
        "run": {"steps": 2, "eval_every": 0},
        "advantages": {"credit": "episode", "scale": "std"},
        "eval": {"samples": 2},
    },
}

PLAYED = (
    "run.toml",
    "step-*/trajectory_bundle.jsonl",
    "step-*/step.json",
    "step-*/adapter/*",
    "step-*/trainer_state/*",
    "step-*/train.json",
    "evals/*/*.json*",
    "evidence.json",
    "evidence.md",
    "preflight.json",
    "manifest.json",
)
"""What a night leaves, and must leave equally."""

LOOKS = (
    ("table", "{run}"),
    ("compare", "{run}@warm", "{run}", "--markdown"),
    ("compare", "{run}@base", "{run}@warm", "{run}", "--json"),
    ("compare", "{run}@warm", "{run}", "--html", "{run}/compare.html"),
    ("replay", "{run}", "--reward", "binary"),
    ("replay", "{run}", "--protocol", "literal"),
    ("reward", "explain", "{run}"),
    ("show", "{run}"),
    ("show", "{run}", "--step", "1"),
    ("show", "{run}", "--task", "held-0"),
    ("show", "{run}", "--task", "pool-0", "--tokens"),
    ("show", "{run}", "--task", "held-1", "--random", "--base"),
    ("watch", "{run}", "--once"),
    ("report", "{run}"),
    ("track", "{run}"),
    ("next", "{run}"),
    ("tasks", "check", "{run}/../heldout.jsonl"),
)
"""The commands that only look, and what they write below the run."""

WRITTEN = ("evidence.*", "report.html", "curve.png", "compare.html", "tensorboard/*")

_SECONDS = re.compile(r"\d+\.\d s\b|(?m:^\| wall time, s .*$)")
"""Times in a table: those of a clock are never the same."""

UNLIKE = re.compile(r"seconds|per_second|wall|^created$|^versions$|^hardware$|^bundle_sha$")
"""Keys whose values are of a clock or of the software (a bundle holds seconds: its hash too)."""


def main(
    before: Annotated[Path, typer.Argument(help="A checkout.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Compare the two, night by night."""
    differing: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        policy = make_tiny_policy(Path(scratch) / "policy")
        for number, (name, tables) in enumerate(NIGHTS.items()):
            place = Path(scratch) / f"night-{number}" / "same"
            kept = [_play(c.resolve(), place, policy, tables) for c in (before, after)]
            played = [_played(run) for run in kept]
            found = [f"{name}: {f}" for f in _differences(played[0], played[1])]
            looked = [_look(c.resolve(), place, kept[0]) for c in (before, after)]
            found += [f"{name}: read by both: {f}" for f in _differences(looked[0], looked[1])]
            print(f"{name}: {len(played[0])} files played, {len(looked[0])} outputs read")
            differing += found
    print("\n".join(differing) or "nothing differs")
    raise SystemExit(bool(differing))


def _grpo(checkout: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join(map(str, (checkout / "tests" / "chaos" / "site", checkout)))
    own = checkout / ".venv/bin/python"  # commands are told as they are typed there
    python = str(own) if own.exists() else sys.executable
    command = [python, "-P", "-m", "scripts.cli", *words]
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "160"}
    return subprocess.run(command, env=env, cwd=checkout, capture_output=True, check=False)


def _play(
    checkout: Path, place: Path, policy: tuple[Path, Path], tables: dict[str, dict[str, object]]
) -> Path:
    """Play the night at `place`, which has to be the same for both; where it is kept."""
    shutil.rmtree(place.parent, ignore_errors=True)
    place.parent.mkdir()
    run = write_run(place, policy[0], policy[1], **tables)
    ended = _grpo(checkout, "run", str(run))
    if ended.returncode:
        raise SystemExit(f"{checkout}: the night ended with {ended.returncode}\n{ended.stderr!r}")
    kept = place.parent.with_name(f"{place.parent.name}-{checkout.name}-{os.urandom(2).hex()}")
    shutil.copytree(place.parent, kept, symlinks=True)
    return kept / place.name


def _look(checkout: Path, place: Path, kept: Path) -> dict[str, Any]:
    """What every command that looks prints and writes, with the kept night at its own place."""
    shutil.rmtree(place.parent)
    shutil.copytree(kept.parent, place.parent, symlinks=True)
    out: dict[str, Any] = {}
    for look in LOOKS:
        words = [word.format(run=place) for word in look]
        ended = _grpo(checkout, *words)
        name = " ".join(look).replace("{run}", "RUN")
        said = (ended.returncode, ended.stdout.decode(), ended.stderr.decode())
        out[name] = json.loads(_without_minute(json.dumps(said)))
    for path in _matching(place, WRITTEN):
        out[path.name] = _without_minute(path.read_bytes().decode("latin-1"))
    return out


def _without_minute(text: str) -> str:
    """Without the time at which something was made or looked at, and the memory free then."""
    now = r"\d{4}-\d\d-\d\d \d\d:\d\d|\d\d:\d\d:\d\d|[\d.]+ of [\d.]+ GiB available"
    return re.sub(now, "NOW", text)


def _played(run: Path) -> dict[str, Any]:
    """Every file of a night by its path, its clocks left out."""
    return {str(p.relative_to(run)): _content(p) for p in _matching(run, PLAYED)}


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    return (p for pattern in patterns for p in sorted(folder.glob(pattern)) if p.is_file())


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".jsonl":
        return [
            _timeless(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()
        ]
    if path.suffix == ".md":
        return _SECONDS.sub("N s", path.read_text(encoding="utf-8")).splitlines()
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if not UNLIKE.search(k)}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def _differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two plain values differ, and how."""
    if type(one) is type(other) and isinstance(one, dict):
        keys = dict.fromkeys([*one, *other])
        missing = [f"{where}/{k}: only in one" for k in keys if (k in one) != (k in other)]
        both = [k for k in keys if k in one and k in other]
        return missing + [d for k in both for d in _differences(one[k], other[k], f"{where}/{k}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in _differences(a, b, f"{where}/{i}")]
    return [] if one == other else [f"{where}: {_shortly(one, other)}"]


def _shortly(one: Any, other: Any) -> str:
    """The first place at which two texts part, with what stands there."""
    a, b = str(one), str(other)
    at = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    start = max(0, at - 60)
    return f"{a[start : at + 60]!r} became {b[start : at + 60]!r}"


if __name__ == "__main__":
    typer.run(main)
