"""Processes that a program owns: marked, written down before they start, and ended whole.

A `Ledger` starts a server that outlives its starter; a later program finds it there, tells by pid,
start time and boot whether it is still the same process, and ends it with all its children
(`terminate`) without ever signalling a process that is not its own. Linux only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.process.ledger import Ledger as Ledger
    from fieldkit.process.ledger import spawn as spawn
    from fieldkit.process.owned import Marked as Marked
    from fieldkit.process.owned import Owned as Owned
    from fieldkit.process.owned import boot_id as boot_id
    from fieldkit.process.owned import family as family
    from fieldkit.process.owned import is_running as is_running
    from fieldkit.process.owned import marked as marked
    from fieldkit.process.owned import start_time as start_time
    from fieldkit.process.owned import terminate as terminate
    from fieldkit.process.owned import wait_ended as wait_ended
    from fieldkit.process.shared_memory import remove_shared as remove_shared
    from fieldkit.process.shared_memory import shared_files as shared_files
else:
    __getattr__, __dir__ = lazily(__name__)
