"""Checks that files which finished phases wrote are unchanged before a phase builds on them.

A disk error, a manual edit or an incomplete copy can change a file. A changed file moves to
changed/ in the run folder, where a person can inspect it, and the loop makes it again. step.json
and train.json hold the hashes of a step's result; the journal holds those of the current bundle and
of evaluation transcripts. The bundle of a finished step is checked only if its step must be trained
again. A loop hashes an evaluation and the base model once, and again where size or time changed,
and it reads each line of the journal once; a phase that was typed looks at everything.

The base model and the starting adapter cannot be made again: where one changed the run stops.

Two phases that run beside each other look in turn, under checked.lock. What the other one is
writing is not there, or whole: bundles, adapters and markers appear by rename, a marker after the
files that it names.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fieldkit.codec import bundle_groups, decode, encode
from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.atomic import (
    fsync_dir,
    locked,
    read_json,
    sha256_file,
    sha256_text,
    write_text,
)
from fieldkit.files.journal import Entry, Journal, Mark
from fieldkit.files.sharded import sha256_records, shards_of, stored
from fieldkit.training.adapter import adapter_sha
from scripts.base.events import Tell, note
from scripts.run.folder import RunFolder
from scripts.run.manifest import check_host, model_files, overlap_of, read_manifest
from scripts.run.next_phase import sampled_from
from scripts.run.timings import this_loop
from trainer.checkpoint import MARKER_FILE, state_sha

_READS, _BETWEEN_READS_SECONDS = 3, 2.0
"""How often a file is read that cannot be read, and how long after the time before: a network's
file system has such moments."""


@dataclass(frozen=True)
class Change:
    """A changed file, and the files to move with it, in order: the marker of a finished step moves
    first, so that a kill leaves no step without a result."""

    what: Path
    goes: tuple[Path, ...]
    why: str = "not as it was written"


def put_aside_changes(folder: RunFolder, tell: Tell) -> None:
    """Move changed files to changed/.

    Raises `BadInput` if the starting adapter changed, because no phase can make it again, and as
    `require_weights`.
    """
    if folder.finished_steps() == 0:
        return
    require_weights(folder)
    _require_start(folder)
    with locked(folder.checked.with_suffix(".lock")):
        _put_aside_all(folder, tell)


def _put_aside_all(folder: RunFolder, tell: Tell) -> None:
    n_done, overlap = folder.finished_steps(), overlap_of(read_manifest(folder))
    known = _read_known(folder, n_done)
    changes = [*_evals(folder, known), *_step(folder, n_done, known.hashes, overlap)]
    if overlap:
        ahead = known.hashes.get(folder.relative(folder.bundle(n_done + 1)))
        changes += _bundle(folder, n_done + 1, ahead, overlap)
    if n_done > 1:
        changes += _step(folder, n_done - 1, known.hashes, overlap)
    _keep_known(folder, known)
    for change in changes:
        _put_aside(folder, change)
        note(
            tell,
            f"{folder.relative(change.what)} is {change.why}: put aside in {folder.changed}, and "
            + ("left out" if change.what.is_relative_to(folder.training_evals) else "made again"),
        )


def require_ours(folder: RunFolder) -> None:
    """Raise for a run that cannot go on here, before anything is written into its folder: a
    committed run's files are tracked."""
    check_host(folder, read_manifest(folder))
    require_weights(folder)


def require_weights(folder: RunFolder) -> None:
    """Raise `BadInput` for a copy without weights, as a committed run is.

    Its finished steps are no damage to mend: a loop would put them aside, one after the other, and
    play them again. The newest step may lack its adapter where its bundle is there to train on.
    """
    n = folder.finished_steps() - 1
    gone = [0] if n >= 0 and not folder.adapter(0).is_dir() else []
    if n > 0 and not folder.adapter(n).is_dir() and not folder.has_bundle(n):
        gone.append(n)
    if gone:
        raise BadInput(
            f"{folder.adapter(gone[0])}: not in this copy, so the run cannot go on here; commands "
            f"that only read work. {folder.how_to_play_again}"
        )


def _require_start(folder: RunFolder) -> None:
    said = read_json(folder.summary(0))["adapter_sha"]
    found = _hash(adapter_sha, folder.adapter(0))
    if found != said:
        raise BadInput(
            f"{folder.adapter(0)}: its hash is {_short(found)}, but the run starts from "
            f"{_short(said)}: it was changed afterwards. Copy the adapter that run.toml names "
            f"there again, or begin another run with `grpo new`"
        )


def require_base(folder: RunFolder, find: Callable[[], Path]) -> None:
    """Raise `BadInput` where the model is not the one that the run began with, to the byte: its
    folder may be written over, and a hub's copy may be gone and a newer one in its place. find:
    finds its folder; not asked where the run has not begun, or its model is behind an endpoint."""
    manifest = read_manifest(folder)
    then = manifest["model"]["files"] if manifest else {}
    if manifest is None or "config.json" not in then:
        return
    model_dir, own = find(), manifest["config"]["model"].get("chat_template")
    with locked(folder.checked.with_suffix(".lock")):
        known = _stored_known(folder, folder.finished_steps())
        for name in sorted({*then, *(file.name for file in model_files(model_dir))} - {own}):
            path = model_dir / name
            now = _size_and_time(path) if path.is_file() else ""
            if now and known.seen.get(str(path)) == now:
                continue
            if _hash(sha256_file, path) != then.get(name):
                raise BadInput(
                    f"{path}: not as it was in the base model that run {folder.name} began with"
                    f" ({manifest['model']['dir']}), so its adapters belong to another one and its"
                    " evaluations could not be compared. Put the file back, or start another run"
                    " with `grpo new`"
                )
            known.seen[str(path)] = now
        _keep_known(folder, known)


def _step(
    folder: RunFolder, n: int, journalled: Mapping[str, str], overlap: int
) -> Iterator[Change]:
    """Changes of step `n`, whose result may be finished, half or not there yet."""
    said = _said(folder, n)
    result = (
        (folder.adapter(n), said.get("adapter_sha"), adapter_sha),
        (folder.trainer_state(n), said.get("optimizer_sha"), state_sha),
    )
    wrong = [path for path, sha, of in result if sha is not None and _hash(of, path) != sha]
    marks = (folder.summary(n), folder.step(n) / MARKER_FILE)
    all_of_it = (*marks, *(path for path, _, _ in result))
    if wrong:
        yield Change(wrong[0], all_of_it)
    elif folder.summary(n).exists():
        return
    sha = said.get("bundle_sha") or journalled.get(folder.relative(folder.bundle(n)))
    yield from _bundle(folder, n, sha, overlap, all_of_it)


def _bundle(
    folder: RunFolder, n: int, sha: str | None, overlap: int, result: tuple[Path, ...] = ()
) -> Iterator[Change]:
    """A change of step `n`'s bundle. sha: as journalled; None where it is not known. result: what
    was trained on it."""
    bundle, sampler = folder.bundle(n), sampled_from(n, overlap)
    if stored(bundle) is None:
        return
    if sha is not None and _hash(sha256_records, bundle) != sha:
        yield Change(bundle, (*result, bundle))
    elif _sampled_by(bundle) not in (None, read_json(folder.summary(sampler))["adapter_sha"]):
        # Trained again, a step need not come to the same bytes: on a GPU it does not.
        why = f"not sampled by the adapter of step {sampler}"
        yield Change(bundle, (*result, bundle), why)


def _sampled_by(bundle: Path) -> str | None:
    """The adapter that a bundle's first line names; None where it has none."""
    first = next(bundle_groups(bundle), None)
    return None if first is None else first.trajectories[0].adapter_sha


def _said(folder: RunFolder, n: int) -> dict[str, Any]:
    """The hashes in step `n`'s own files; none before it was trained."""
    for file in (folder.summary(n), folder.step(n) / MARKER_FILE):
        if file.exists():
            return dict(read_json(file))
    return {}


@dataclass(frozen=True)
class _Known:
    """What one loop has seen. hashes: as journalled up to `mark`, by path in the run folder, of the
    evaluations and of the newest steps. seen: evaluations, and files of the base model, that had
    their hash, with the size and time that they had then. steps: how many were finished."""

    loop: str = ""
    steps: int = 0
    mark: Mark = field(default_factory=Mark)
    hashes: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)


def _read_known(folder: RunFolder, n_done: int) -> _Known:
    """What this loop has seen, the journal's new lines included. A phase that was typed, and the
    first one of a loop, look at everything."""
    known = _stored_known(folder, n_done)
    journal = Journal(folder.journal)
    found = journal.read_on(known.mark)
    if found is None:  # not the journal that was marked
        known = _Known(known.loop)
        found = journal.read_on(known.mark)
    entries, mark = found or ((), known.mark)
    hashes = _journalled(entries, known.hashes)
    # Older steps are not looked at. Where the newest ones go, everything is read again.
    old = {folder.step(n).name for n in range(known.steps - 1, n_done - 1)}
    hashes = {p: sha for p, sha in hashes.items() if Path(p).parts[0] not in old}
    return replace(known, steps=n_done, mark=mark, hashes=hashes)


def _stored_known(folder: RunFolder, n_done: int) -> _Known:
    loop = this_loop()
    try:
        text = folder.checked.read_text(encoding="utf-8")
        known = decode(_Known, text, str(folder.checked))
    except (BadInput, FileNotFoundError, UnicodeDecodeError):
        return _Known(loop)
    return known if loop and known.loop == loop and known.steps <= n_done else _Known(loop)


def _keep_known(folder: RunFolder, known: _Known) -> None:
    if known.loop:
        write_text(folder.checked, encode(known) + "\n")


def _evals(folder: RunFolder, known: _Known) -> Iterator[Change]:
    for name, sha in known.hashes.items():
        path = folder.path / name
        there = stored(path) if path.is_relative_to(folder.evals) else None
        if there is None or known.seen.get(name) == (now := _size_and_time(there)):
            continue
        if _hash(sha256_records, path) == sha:
            known.seen[name] = now
        else:
            yield Change(path, (path.parent,))


def _size_and_time(path: Path) -> str:
    """What changes when somebody writes to a file, or to one in a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    facts = [(s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in map(os.stat, files)]
    return sha256_text(repr(facts))


def _journalled(entries: Iterable[Entry], before: Mapping[str, str]) -> dict[str, str]:
    """The newest journalled hash of every file, by path in the run folder. A file that was moved or
    removed since has none: a later one may take its place."""
    found = dict(before)
    for entry in entries:
        found |= entry.data.get("wrote", {})
        for gone in (*entry.data.get("moved", ()), *entry.data.get("removed", ())):
            found = {p: sha for p, sha in found.items() if not Path(p).is_relative_to(gone)}
    return found


def _hash(of: Callable[[Path], str], path: Path) -> str | None:
    """The hash of what is there; None where it is not whole. Raises `Unavailable` where a file
    system keeps from telling: a finished step is worth more than a moment without its disk."""
    for left in reversed(range(_READS)):
        try:
            return of(path)
        except (BadInput, FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            failed = e
        if left:
            time.sleep(_BETWEEN_READS_SECONDS)
    if failed.errno == errno.EIO:  # a bad block stays bad
        return None
    raise Unavailable(
        f"{path}: {failed.strerror}; the same command goes on once it can be read"
    ) from failed


def _put_aside(folder: RunFolder, change: Change) -> None:
    folder.changed.mkdir(exist_ok=True)
    names = []
    for path in filter(Path.exists, (q for p in change.goes for q in (p, shards_of(p)))):
        names.append(folder.relative(path))
        flat = names[-1].replace(os.sep, "-")
        os.rename(path, folder.changed / f"{flat}-{time.strftime('%Y%m%d-%H%M%S')}")
        for parent in (path.parent, folder.changed):
            fsync_dir(parent)
    Journal(folder.journal).append("put_aside", changed=folder.relative(change.what), moved=names)


def _short(sha: str | None) -> str:
    return "unreadable" if sha is None else sha[:12]
