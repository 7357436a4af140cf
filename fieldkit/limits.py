"""The limit on open files, raised as far as the system allows.

Every episode in flight holds a connection and the pipes of its sandbox. The usual soft limit of
1024 protects programs that use select(2), which nothing here does; the hard limit is the real one.
"""

from __future__ import annotations

import resource

from fieldkit.errors import Shortage


def allow_open_files(needed: int) -> None:
    """Raise this process's limit on open files to `needed`. Children inherit it.

    Raises `Shortage`, with the command to type, where the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise Shortage(
            f"{hard} open files are allowed here, and about {needed} are needed; run "
            f"`ulimit -n {needed}` (as root, or set it in /etc/security/limits.conf) and the same "
            "command again, or lower rollout.concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
