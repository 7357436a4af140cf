"""A sweep: some settings, each with every seed, as nights of one folder.

`runs/NAME/sweep.toml` says what is swept, and each night is a run folder beside it, with a run.toml
of its own. Nights are ordered seed by seed, so that a sweep that is cut short has every arm as
often. A night that is made keeps its run.toml, where a person may fit it to the machine. Nothing is
played here.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, MissingFile
from fieldkit.files.atomic import write_text
from fieldkit.registry import nearest
from scripts.prepare.presets import new_run, preset_config, run_text
from scripts.run.assignments import parse, toml_value
from scripts.run.config import AUTO, MOST_TASKS, RunConfig, config_of, read_config
from scripts.run.folder import SWEEP_FILE, RunFolder
from scripts.run.manifest import FREE_KEYS, LENGTH_KEYS, changes

PLAIN = "night"
"""The one arm of a sweep in which nothing varies but the seed."""

SEED = "run.seed"
"""What a sweep's seeds set."""

STEPS = "run.steps"

_LONGEST = 85
"""Characters of an arm's name: a run's may have 100, and `-seed2147483647` follows."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_LONGEST - 1}}}")
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_KEYS = ("preset", "seeds", "halve_after", "set", "arms")

_HEAD = """\
# A sweep: every arm with every seed, seed by seed. `grpo sweep run {name}` plays what is missing,
# `grpo sweep show {name}` compares the arms: each with where it started, and with the first arm.
"""


@dataclass(frozen=True)
class SweepNight:
    """One arm with one seed."""

    arm: str
    seed: int
    folder: RunFolder


@dataclass(frozen=True)
class Sweep:
    """folder: where sweep.toml and the nights are. arms: settings by arm, as `table.key` → value;
    common: those that every night has. halve_after: the steps after which the better half of the
    arms goes on, twice as far each time; None: every arm is played to its end."""

    folder: Path
    preset: str
    seeds: tuple[int, ...]
    common: Mapping[str, Any]
    arms: Mapping[str, Mapping[str, Any]]
    halve_after: int | None = None

    @property
    def nights(self) -> tuple[SweepNight, ...]:
        """Every night, in the order in which they are played."""
        return tuple(
            SweepNight(arm, seed, RunFolder(self.folder / f"{arm}-seed{seed}"))
            for seed in self.seeds
            for arm in self.arms
        )

    @property
    def by_arm(self) -> dict[str, list[RunFolder]]:
        """The run folders of every arm, in the order of the seeds."""
        return {arm: [n.folder for n in self.nights if n.arm == arm] for arm in self.arms}

    @property
    def steps(self) -> int:
        """The steps of every night, of a sweep that halves, whatever a night's run.toml says."""
        steps = _config_of(self, self.nights[0]).run.steps
        assert steps != AUTO, "a sweep that halves was read without a number of steps"
        return steps

    def assignments(self, night: SweepNight) -> list[str]:
        """The settings of a night, as `--set` takes them."""
        values = {**self.common, **self.arms[night.arm], SEED: night.seed}
        return [f"{key}={toml_value(value)}" for key, value in values.items()]


def read_sweep(folder: Path) -> Sweep:
    """Read and check sweep.toml. Raises `BadInput` naming file and key."""
    file = folder / SWEEP_FILE
    try:
        return _sweep_of(file, file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFile(
            f"{file}: no such file; `grpo sweep new NAME --vary KEY=A,B --seeds 0,1,2` writes one"
        ) from None
    except UnicodeDecodeError as e:
        raise BadInput(f"{file}: not UTF-8 ({e})") from None


def _sweep_of(file: Path, text: str) -> Sweep:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise BadInput(f"{file}: not TOML ({e})") from None
    for key in table:
        if key not in _KEYS:
            hint = f"; did you mean {near!r}?" if (near := nearest(key, _KEYS)) else ""
            raise BadInput(f"{file}: unknown key {key!r}{hint}")
    seeds, arms, halve = table.get("seeds"), table.get("arms"), table.get("halve_after")
    if not isinstance(seeds, list) or not seeds or not all(type(s) is int for s in seeds):
        raise BadInput(f"{file}: seeds: {seeds!r} is no list of whole numbers, as in [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"{file}: seeds: one of {seeds} is there twice")
    if not isinstance(arms, dict) or not arms:
        raise BadInput(f"{file}: a sweep needs an arm at least, a table [arms.NAME]")
    if halve is not None and (type(halve) is not int or halve < 1):
        raise BadInput(f"{file}: halve_after: {halve!r} is no number of steps, as in 5")
    if halve is not None and any(STEPS in values for values in arms.values()):
        raise BadInput(f"{file}: halve_after: arms of different {STEPS} cannot be halved")
    if halve is not None and len(arms) < 2:
        raise BadInput(
            f"{file}: halve_after (--halve-after): one arm has no better half; leave it out"
        )
    for arm in arms:
        if not _NAME.fullmatch(arm):
            raise BadInput(
                f"{file}: arms: {arm!r} cannot name a folder; take up to {_LONGEST} letters,"
                " digits, dots, dashes and underscores"
            )
    return Sweep(
        file.parent,
        str(table.get("preset", "smol")),
        tuple(seeds),
        _settings(file, "set", table.get("set", {})),
        {arm: _settings(file, f"arms.{arm}", values) for arm, values in arms.items()},
        halve,
    )


def _settings(file: Path, where: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise BadInput(f"{file}: {where} must be a table, written [{where}]")
    for key in values:
        if key == SEED:
            raise BadInput(f"{file}: {where}: {SEED} is set by `seeds`; leave it out")
        try:
            parse([f"{key}=0"])
        except BadInput as e:
            raise BadInput(f"{file}: {where}: {str(e).removeprefix(f'--set {key}=0: ')}") from None
    return dict(values)


def make_nights(sweep: Sweep) -> tuple[SweepNight, ...]:
    """The sweep's nights, with the run folders made that are not there yet.

    Raises `BadInput`, with nothing made, for a setting that is unsound, and for a night that was
    made with other settings than it would have now (`_refuse_changed`).
    """
    for night in sweep.nights:
        expected = _sound(sweep, night)
        if night.folder.config.is_file():
            _refuse_changed(sweep, night, expected)
    for night in sweep.nights:
        if not night.folder.config.is_file():
            new_run(night.folder, sweep.preset, assignments=sweep.assignments(night))
    return sweep.nights


def _refuse_changed(sweep: Sweep, night: SweepNight, expected: RunConfig) -> None:
    """Raise `BadInput` naming the first key in which a night's run.toml is not as `expected`.

    What may change after a run's first step may differ, because errors advise a person to set some
    of it. But the values of an arm make the arm; and how long nights are is the same for all where
    sweep.toml says it, unless it halves: then the nights are told their steps as they are played.
    """
    arm, file = sweep.arms[night.arm], sweep.folder / SWEEP_FILE
    told = LENGTH_KEYS & sweep.common.keys() - (set() if sweep.halve_after is None else {STEPS})
    free = FREE_KEYS - arm.keys() - told
    try:
        there = read_config(night.folder.config)
    except BadInput:
        return  # told where it is played, and the other nights are
    found = {k: v for k, v in changes({"config": there.plain()}, expected).items() if k not in free}
    if not found:
        return
    (key, (is_now, should_be)), *others = found.items()
    more = f" (and {len(others)} more: {', '.join(k for k, _ in others)})" if others else ""
    mend = "write the same in both" if key in FREE_KEYS else "put back what was changed"
    raise BadInput(
        f"{night.folder.config}: {key} is {is_now!r}, and {should_be!r} by {file} and its preset"
        f" {sweep.preset}{more}; {mend}, or give the arm {night.arm!r} another name in {file}, so"
        " that its nights are played anew"
    )


def new_sweep(
    folder: RunFolder,
    preset: str,
    vary: Sequence[str],
    seeds: str,
    assignments: Sequence[str],
    halve_after: int | None = None,
) -> Sweep:
    """Write sweep.toml and make the nights' run folders.

    vary: `table.key=A,B,C`; several make one arm of every combination. seeds: `0,1,2`.
    assignments: settings of every night. halve_after: as in `Sweep`. Raises `BadInput`, with
    nothing written.
    """
    file = folder.path / SWEEP_FILE
    if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise BadInput(
            f"{folder.path}: is there already; `grpo sweep run {folder.typed}` goes on with a"
            " sweep, or take another name"
        )
    text = _HEAD.format(name=folder.typed) + _body(preset, vary, seeds, assignments, halve_after)
    sweep = _sweep_of(file, text)
    for night in sweep.nights:
        _sound(sweep, night)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    make_nights(sweep)
    return sweep


def _config_of(sweep: Sweep, night: SweepNight) -> RunConfig:
    """The settings with which a night is made. Raises `BadInput` for an unsound one."""
    assignments = sweep.assignments(night)
    try:
        text = run_text(sweep.preset, assignments=assignments)
    except BadInput as e:
        ours = f"--set {', '.join(parse(assignments))}: "  # which nobody typed
        if not str(e).startswith(ours):
            raise
        unsound = str(e).removeprefix(ours)
        raise BadInput(f"{_origin(sweep, night, unsound.partition(':')[0])}: {unsound}") from None
    return config_of(tomllib.loads(text), night.folder.name)


def _origin(sweep: Sweep, night: SweepNight, key: str) -> str:
    """Where a person gave a night its value of this key: in sweep.toml, or in the command that is
    about to write it. All of the night's words where the key is none of them."""
    file, arm = sweep.folder / SWEEP_FILE, sweep.arms[night.arm]
    if file.is_file():
        return f"{file}: set" if key in sweep.common else f"{file}: arms.{night.arm}"
    words = {k: f"--vary {k}={v}" for k, v in arm.items()} | {SEED: f"--seeds {night.seed}"}
    return words.get(key) or " ".join(words.values())


def _sound(sweep: Sweep, night: SweepNight) -> RunConfig:
    """The same, where they fit into a sweep. Raises `BadInput`."""
    config = _config_of(sweep, night)
    if sweep.halve_after is not None:
        file, steps = sweep.folder / SWEEP_FILE, config.run.steps
        if steps == AUTO:
            raise BadInput(
                f"{file}: halve_after needs nights of a number of steps: write"
                f' "{STEPS}" = 40 under [set]'
            )
        if sweep.halve_after >= steps:
            raise BadInput(
                f"{file}: halve_after (--halve-after {sweep.halve_after}) drops no arm of"
                f" nights of {steps} steps ({STEPS}); take fewer than those"
            )
    if config.eval.tasks == AUTO:
        raise BadInput(
            f'{sweep.folder / SWEEP_FILE}: eval.tasks is "auto", but all nights have to play the'
            f' same tasks: write "eval.tasks" = {MOST_TASKS} under [set]'
        )
    return config


def _body(
    preset: str,
    vary: Sequence[str],
    seeds: str,
    assignments: Sequence[str],
    halve_after: int | None,
) -> str:
    try:
        numbers = [int(word) for word in seeds.split(",")]
    except ValueError:
        raise BadInput(f"--seeds {seeds}: write whole numbers with commas, as in 0,1,2") from None
    axes = [_axis(word) for word in vary]
    common = parse(assignments)
    for key, _ in axes:
        if key in common:
            raise BadInput(f"--set {key}: --vary gives it to every arm; leave one of the two out")
    if preset_config(preset, assignments).eval.tasks == AUTO:  # all nights play the same tasks
        common["eval.tasks"] = MOST_TASKS
    lines = [f"preset = {json.dumps(preset)}", f"seeds = {numbers}"]
    lines += [] if halve_after is None else [f"halve_after = {halve_after}"]
    lines += ["", "[set]"]
    lines += [f"{json.dumps(k)} = {toml_value(v)}" for k, v in common.items()]
    for arm, chosen in _arms(axes).items():
        lines += ["", f"[arms.{json.dumps(arm)}]"]
        lines += [f"{json.dumps(key)} = {toml_value(value)}" for key, value in chosen.items()]
    return "\n".join(lines) + "\n"


def _arms(axes: Sequence[tuple[str, list[Any]]]) -> dict[str, dict[str, Any]]:
    """Every combination of the values by an arm's name: what it says of them, or its number where
    one of the names would be too long for a folder."""
    arms: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(v for _, v in axes)):
        chosen = dict(zip((key for key, _ in axes), values, strict=True))
        words = [f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items()]
        arm = _ODD.sub("_", "-".join(words)) or PLAIN
        if arm in arms:
            raise BadInput(f"--vary: two arms would have the same name, {arm!r}")
        arms[arm] = chosen
    if max(map(len, arms)) <= _LONGEST:
        return arms
    return {f"arm-{number}": chosen for number, chosen in enumerate(arms.values(), 1)}


def _axis(word: str) -> tuple[str, list[Any]]:
    """The key and the values of `--vary KEY=A,B`."""
    key, _, values = word.partition("=")
    parts = values.split(",")
    if any(part.count(a) != part.count(b) for part in parts for a, b in ("[]", "{}")):
        raise BadInput(
            f"--vary {word}: a comma ends a value here, so a list or a table with commas goes into"
            f" {SWEEP_FILE}: `grpo sweep new NAME` writes it; then give each value a table"
            " [arms.NAME] there"
        )
    try:
        found = [parse([f"{key.strip()}={part}"])[key.strip()] for part in parts]
    except BadInput as e:
        raise BadInput(f"--vary {str(e).removeprefix('--set ')}") from None
    if len(found) < 2:
        raise BadInput(f"--vary {word}: name at least two values, as in {key}=0.2,0.5")
    return key.strip(), found
