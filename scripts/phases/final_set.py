"""Records who evaluated on the final set, and warns of earlier evaluations.

A final set judges what no setting was chosen on, so it is worth most when it is opened once. Before
a policy plays tasks of it, one line is appended to FINAL.opened.jsonl. The file lies beside the
set, because it belongs to the set and not to a run: it outlives the run's folder, is committed with
the set, and goes with it to another machine. Tasks are recognised by what they say, so a copy of
the file, or a part of it, is the final set too. Yardsticks are not recorded: they sample nothing,
so no setting can be chosen by them.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fieldkit.codec import decode, encode
from fieldkit.errors import BadInput
from fieldkit.files.atomic import append_line, read_lines, sha256_file
from rollout.arm import tasks_sha
from rollout.tasks import decode_tasks
from scripts.base.checkout import from_checkout, in_checkout
from scripts.base.events import alarm, note
from scripts.phases.context import Context
from scripts.run.config import DataSettings
from scripts.run.manifest import read_manifest

_NAMED = 3
"""Earlier runs that a warning names, the newest ones."""


@dataclass(frozen=True)
class Opening:
    """A policy is about to play tasks of the final set: one line of FINAL.opened.jsonl.

    began: when the run was started (Unix seconds); with its name it tells the run from a later one
    of the same name. final_sha256: of the set's file. tasks_sha: of the tasks that are played,
    n_tasks of which are of the set. trained: the run trained the adapter. commit: of the checkout,
    with "+" where files were changed.
    """

    date: str
    run: str
    began: float
    arm: str
    adapter_sha: str
    final_sha256: str
    tasks_sha: str
    n_tasks: int
    trained: bool
    commit: str

    def is_of(self, other: Opening) -> bool:
        """Whether both are of one run."""
        return (self.run, self.began) == (other.run, other.began)

    def same_policy(self, other: Opening) -> bool:
        return self.adapter_sha == other.adapter_sha


def opened_file(final: Path) -> Path:
    """The record of a final set."""
    return final.with_name(f"{final.stem}.opened.jsonl")


def read_openings(final: Path) -> tuple[Opening, ...]:
    """Every recorded opening, the oldest first. Raises `BadInput` naming file and line."""
    file = opened_file(final)
    if not file.is_file():
        return ()
    return tuple(decode(Opening, line, f"{file}:{n}") for n, line in read_lines(file))


def told_by_run(openings: Sequence[Opening]) -> tuple[str, ...]:
    """Who opened the set, when, and with which arms: one text for each run."""
    runs: dict[tuple[str, float], list[Opening]] = {}
    for opening in openings:
        runs.setdefault((opening.run, opening.began), []).append(opening)
    return tuple(
        f"run {name} on {found[0].date[:10]} ({', '.join(dict.fromkeys(o.arm for o in found))})"
        for (name, _), found in runs.items()
    )


def open_final_set(ctx: Context, arm: str, adapter_sha: str, *, trained: bool = False) -> None:
    """Record that this arm is about to play the held-out tasks, where some of them are of a final
    set, and tell of earlier openings. Nothing is refused for having been opened before.

    trained: the run trained the adapter. The arms that a run starts from are one opening with its
    first trained adapter; a further one is a second look. Raises `BadInput` where the record cannot
    be read or written.
    """
    tasks = ctx.evaluation.of(decode_tasks(ctx.heldout_file))
    played = {encode(task) for task in tasks}
    for final in _final_sets(ctx):
        n_tasks = len(played & {encode(task) for task in decode_tasks(final)})
        if n_tasks:
            manifest = read_manifest(ctx.folder) or {}
            opening = Opening(
                date=datetime.now(UTC).isoformat(timespec="seconds"),
                run=ctx.folder.name,
                began=manifest.get("created", 0.0),
                arm=arm,
                adapter_sha=adapter_sha,
                final_sha256=sha256_file(final),
                tasks_sha=tasks_sha(tasks),
                n_tasks=n_tasks,
                trained=trained,
                commit=manifest.get("versions", {}).get("commit", ""),
            )
            _record(ctx, final, opening)


def _final_sets(ctx: Context) -> Sequence[Path]:
    """The run's final set, and the default one: a setting is no way around the record."""
    named = dict.fromkeys((ctx.config.data.final, DataSettings().final))
    return [file for name in named if name and (file := from_checkout(name)).is_file()]


def _record(ctx: Context, final: Path, now: Opening) -> None:
    file, known = opened_file(final), read_openings(final)
    if not any(o.is_of(now) and o.same_policy(now) for o in known):
        _append(file, now)
    earlier = told_by_run([o for o in known if _is_earlier_look(o, now)])
    shown = in_checkout(final)
    ctx.journal.append(
        "final_set_opened",
        arm=now.arm,
        file=str(shown),
        sha256=now.final_sha256,
        tasks_sha=now.tasks_sha,
        n_tasks=now.n_tasks,
        earlier=list(earlier),
    )
    if earlier:
        named = "; ".join(earlier[-_NAMED:])
        more = f", and {len(earlier) - _NAMED} runs before" if len(earlier) > _NAMED else ""
        alarm(
            ctx.tell,
            f"{shown} is a final set and was opened before, by {named}{more}. A setting chosen "
            f"after such a look was chosen on these tasks too. {in_checkout(file)} lists every "
            "opening",
        )
    else:
        note(
            ctx.tell,
            f"{shown} is a final set: that {now.arm} opens it is recorded in {in_checkout(file)}; "
            "commit that file with the result",
        )


def _is_earlier_look(opening: Opening, now: Opening) -> bool:
    """Whether what `opening` showed could have been used to choose what plays now."""
    if not opening.is_of(now):
        return True
    return now.trained and opening.trained and not opening.same_policy(now)


def _append(file: Path, opening: Opening) -> None:
    try:
        append_line(file, encode(opening))
    except OSError as e:
        if e.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise BadInput(
            f"{file}: cannot be written ({e.strerror}), and a final set is opened only on record; "
            "copy the set to a folder of your own and name the copy as data.final"
        ) from None
