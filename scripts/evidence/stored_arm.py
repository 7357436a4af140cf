"""One evaluated arm of a run, found by the name that a person types.

RUN is the run's newest evaluated adapter, RUN@warm the adapter at its start, RUN@base the base
model without an adapter, RUN@12 the adapter of step 12. Only finished evaluations count; the error
for a missing one names the command that plays it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.journal import Journal
from fieldkit.records import StepSummary
from rollout.settings import EpisodeSettings
from scripts.evidence.played import BASE, PlayedArm, read_played, taken_from
from scripts.run.assignments import toml_value
from scripts.run.config import AUTO, RunConfig, flat, play_flags, read_config
from scripts.run.folder import RunFolder, open_run
from scripts.run.manifest import (
    evaluated_adapter,
    read_manifest,
    sandbox_kind,
    typed_to_play,
)
from scripts.run.reader import RunReader

WARM = "warm"
SYNTAX = "an arm is RUN, RUN@warm, RUN@base or RUN@STEP"


@dataclass(frozen=True)
class StoredArm:
    """One evaluated arm, and its run."""

    word: str
    """RUN as it was typed, for use in a command."""
    folder: RunFolder
    arm: str
    """The part after the @: "warm", "base" or a step number."""
    adapter: Path | None
    """The adapter's folder; None for the base model."""
    newer: int | None
    """The run's newest step, if it has no evaluation and RUN therefore means an older one."""
    manifest: Mapping[str, Any]
    played: PlayedArm
    played_by: Mapping[str, Any] | None
    """The manifest of the run that played the arm, which is another run if the arm was taken over;
    None if that run is gone."""

    @property
    def label(self) -> str:
        """The arm's name in tables."""
        return self.label_behind(self.folder.name)

    def label_behind(self, run: str) -> str:
        """The same with another name of the run. A folder that `grpo eval` made has one adapter,
        which no night began with, so that the folder names it."""
        alone = self.arm == WARM and evaluated_adapter(self.manifest)
        return run if alone else f"{run}@{self.arm}"


def read_arm(text: str) -> StoredArm:
    """Find the arm named `text`.

    Raises `BadInput` with the next command if there is no such arm or it is not evaluated.
    """
    word, wanted = _split(text)
    _refuse_adapter_folder(word)
    folder = open_run(word)
    reader = RunReader(folder)
    manifest, steps = reader.manifest, reader.steps
    if manifest is None or not steps:
        raise BadInput(
            f"{folder.path}: not started yet, so no arm is evaluated; `grpo run {word}` plays and"
            " evaluates it"
        )
    run = _Run(word, folder, steps, reader.evaluations, typed_to_play(word, manifest))
    arm, step = run.find(wanted)
    sha = BASE if step is None else steps[step].adapter_sha
    evaluation = folder.evals / str(run.evaluated[sha]["key"])
    newest = len(steps) - 1
    return StoredArm(
        word=word,
        folder=folder,
        arm=arm,
        adapter=None if step is None else folder.adapter(step),
        newer=newest if wanted is None and step != newest else None,
        manifest=manifest,
        played=read_played(evaluation),
        played_by=_played_by(folder, evaluation.name),
    )


@dataclass(frozen=True)
class _Run:
    """The parts of a started run in which an arm is searched."""

    word: str
    folder: RunFolder
    steps: Sequence[StepSummary]
    evaluated: Mapping[str, Mapping[str, Any]]
    """Adapter hash → its finished evaluation under the run's present settings."""
    to_play: str
    """`word` in a command that plays."""

    def find(self, wanted: str | None) -> tuple[str, int | None]:
        """Return the arm's name and the step of its adapter (None: the base model)."""
        if wanted is None:
            step = self._newest_evaluated()
            return (WARM if self._is_start(step) else str(step)), step
        if wanted == BASE:
            if BASE not in self.evaluated:
                raise self._never_played(BASE)
            return BASE, None
        step = 0 if wanted == WARM else self._number(wanted)
        if self.steps[step].adapter_sha not in self.evaluated:
            raise self._never_played(WARM if step == 0 else wanted)
        return (WARM if step == 0 else str(step)), step

    def _newest_evaluated(self) -> int:
        for step in reversed(self.steps):
            if step.adapter_sha in self.evaluated:
                return step.step
        raise BadInput(
            f"{self.folder.path}: no adapter of this run has a finished evaluation; "
            f"`grpo eval {self.to_play}` plays the warm start and the newest adapter"
        )

    def _number(self, wanted: str) -> int:
        newest = len(self.steps) - 1
        if not wanted.isdecimal():
            raise BadInput(f"{self.word}@{wanted}: {wanted!r} is no arm of a run; {SYNTAX}")
        if int(wanted) > newest:
            raise BadInput(
                f"{self.word}@{wanted}: run {self.folder.name} has finished steps 0 to {newest}"
            )
        return int(wanted)

    def _never_played(self, arm: str) -> BadInput:
        what = f"{self.word}@{arm}: it has no finished evaluation"
        if arm == BASE and read_config(self.folder.config).eval.base == "never":
            return self._base_is_left_out(what)
        step = 0 if arm in (WARM, BASE) else int(arm)
        there = [s.step for s in self.steps if s.adapter_sha in self.evaluated]
        named = dict.fromkeys(WARM if self._is_start(n) else str(n) for n in there)
        have = f" (there are: {', '.join(named) or 'none'})"
        if not self.folder.adapter(step).is_dir():
            return BadInput(
                f"{what}{have}, and this copy of the run has no weights to play it with."
                f" {self.folder.how_to_play_again}"
            )
        if step in (0, len(self.steps) - 1):
            return BadInput(f"{what}; `grpo eval {self.to_play}` plays it")
        return BadInput(f"{what}{have}; `grpo eval {self.to_play} --step {arm}` plays it")

    def _base_is_left_out(self, what: str) -> BadInput:
        left_out = f'{what}, because eval.base is "never" in {self.folder.config}'
        if self.folder.adapter(0).is_dir():
            return BadInput(
                f"{left_out}; `grpo eval {self.to_play} --set eval.base=start` plays it"
            )
        again = self.folder.how_to_play_again
        return BadInput(f'{left_out}. Set it to "start" in the copy: {again}')

    def _is_start(self, step: int) -> bool:
        return self.steps[step].adapter_sha == self.steps[0].adapter_sha


def replay(
    like: RunFolder, adapter: Path, name: str, model: str | None = None, *, more: str = ""
) -> tuple[str, str]:
    """The commands that evaluate `adapter` under the conditions of `like`, and the arm's new name.

    They start a new run of no steps, because a run keeps the settings it was started with. Where
    `like` is one arm of `grpo eval`, no run can be made like it, and `grpo eval` plays. model:
    [model] path, if it differs from that of `like`. The new run lies in the same folder as `like`,
    so it takes over arms that `like` has played. more: a setting that the new run has besides, as
    `KEY=VALUE`.
    """
    path = like.path.parent / name
    word = RunFolder(path).typed
    if (config := read_config(like.config)).is_one_arm:
        flags = play_flags(sandbox_kind(read_manifest(like) or {}))
        given = _eval_words(config, model or config.model.path, more)
        typed = shlex.join(["grpo", "eval", "--adapter", str(adapter), *given, "--out", str(path)])
        return f"`{typed}{flags}`", f"{word}@{WARM}"
    base = f" and path = {toml_value(model)}" if model else ""
    manifest = read_manifest(like) or {}
    flags = play_flags(sandbox_kind(manifest))
    if config.eval.tasks == AUTO:  # the new run would settle it anew
        flags += f" --set eval.tasks={manifest['config']['eval']['tasks']}"
    if more:
        flags += f" --set {more}"
    new = shlex.quote(str(path))
    return (
        f"`mkdir {new} && cp {shlex.quote(str(like.config))} {new}/`, set [model] adapter ="
        f" {toml_value(str(adapter))}{base} in the copy, `grpo run {word} --steps 0"
        f" --skip-preflight{flags}`"
    ), f"{word}@{WARM}"


def _eval_words(config: RunConfig, model: str, more: str) -> list[str]:
    """What `grpo eval` is told to play tasks as these settings say; the default preset, which it
    begins with, leaves the conditions of an arm at their defaults."""
    words = ["--model", model, "--tasks", config.data.heldout]
    if config.eval.tasks:
        words += ["--limit", str(config.eval.tasks)]
    found, usual = config.plain(), flat(RunConfig().plain())
    conditions = {
        "eval": ("temperature", "samples"),
        "rollout": [f.name for f in fields(EpisodeSettings)],
        "model": ("chat_template", "chat_template_kwargs", "tool_form"),
        **{table: found.get(table, {}) for table in ("engine", "sandbox", "envs")},
    }
    own = ("engine.trainer_gib", "engine.lifecycle", "sandbox.kind")  # as `grpo eval` has them
    given = [f"{t}.{k}" for t, keys in conditions.items() for k in keys if f"{t}.{k}" not in own]
    for key in given:
        table, _, name = key.partition(".")
        value = found[table][name]
        if value == usual.get(key):
            continue
        parts = value.items() if table == "envs" else [("", value)]
        for part, one in parts:
            words += ["--set", f"{key}{'.' * bool(part)}{part}={toml_value(one)}"]
    return [*words, "--set", more] if more else words


def _split(text: str) -> tuple[str, str | None]:
    """Split at the @ of the last path component; a folder above it may contain an @ too."""
    parents, slash, last = text.rstrip("/").rpartition("/")
    name, at, arm = last.partition("@")
    if not name:
        raise BadInput(f"{text!r} names no run; {SYNTAX}")
    return f"{parents}{slash}{name}", arm if at else None


def _refuse_adapter_folder(word: str) -> None:
    """Refuse an adapter's folder, which has no evaluation of its own; name its run and arm."""
    path = Path(word).expanduser()
    if not (path / "adapter_config.json").is_file():
        return
    path = path.resolve()
    step, run = path.parent.name.removeprefix("step-"), path.parent.parent
    if step.isdecimal() and (run / "run.toml").is_file():
        raise BadInput(f"{word}: an adapter's folder; name it by its run: {run}@{int(step)}")
    raise BadInput(
        f"{word}: an adapter's folder, and evaluations belong to runs: `grpo new NAME`, set [model]"
        f" adapter = {toml_value(str(path))} in its run.toml, `grpo run NAME --steps 0"
        " --skip-preflight`; then it is NAME@warm"
    )


def _played_by(folder: RunFolder, key: str) -> Mapping[str, Any] | None:
    """The manifest of the run that played an evaluation, traced through every take-over."""
    seen: set[Path] = set()
    while folder.path not in seen:
        seen.add(folder.path)
        if (run := taken_from(Journal(folder.journal).read()).get(key)) is None:
            return read_manifest(folder)
        folder = RunFolder(folder.path.parent / run)
    return None
