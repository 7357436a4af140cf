"""`grpo takeover`: makes this host the owner of a run folder from another host.

Only the manifest's host and hardware change. The ledger's entries name another boot, so they cannot
be mistaken for processes here.
"""

from __future__ import annotations

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_json
from fieldkit.files.journal import Journal
from scripts.base.machine import hardware, host_identity
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from scripts.run.manifest import is_same_host, read_manifest
from scripts.run.verify import require_weights


def takeover(folder: RunFolder) -> str:
    """Make this host the run's owner; return a line to show. Raises `NotOwner` if a loop runs."""
    with run_lock(folder.lock):
        manifest = read_manifest(folder)
        if manifest is None:
            raise BadInput(f"{folder.path}: not started yet, so no host owns it; `grpo run` it")
        old, new = manifest["host"], host_identity()
        if is_same_host(old, new):
            return f"run {folder.name} is this host's already ({new['name']})"
        require_weights(folder)
        changed = {**manifest, "host": new, "hardware": hardware()}
        Journal(folder.journal).append("takeover", old=old, new=new)
        write_json(folder.manifest, changed)
    return f"run {folder.name} now belongs to {new['name']} (it was {old['name']}'s)"
