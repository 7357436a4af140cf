"""Has torchrun run the trainer as several ranks on this machine.

The ranks run the same command, as children of this process. torch's launcher starts them, watches
them, and ends all of them where one fails; this module says how they are started and turns what
torch reports into an error that names the rank. There is no restart: a step that failed is taken
anew by the same command.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from fieldkit.errors import Interrupted, Unavailable
from trainer.checkpoint import remove_unfinished
from trainer.settings import TrainerSettings, cuda_devices

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

_SCRATCH_PREFIX = "ranks.tmp-"
"""Of a folder in the step's folder; what sweeps temporaries after a kill removes it."""

_WATCH_SECONDS = 0.1  # how often torch looks whether all ranks live
_GRACE_SECONDS = 5  # how long ranks may take to end after SIGTERM; they write nothing then


class RankFailed(Unavailable):
    """A rank ended a step. Its exit code is that of the rank, 128 + n where signal n ended it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_ranks(words: Sequence[str], settings: TrainerSettings, out_dir: Path) -> None:
    """Run `python WORDS` as the ranks of one step, to the end of all of them.

    out_dir: the step's folder. On CUDA each rank sees one device, as its first; on a CPU the ranks
    share the cores. Changes the environment of this process, which the ranks inherit. Raises
    `BadInput` for more ranks than devices, `RankFailed` for a rank that failed, and `Interrupted`
    where this process is told to end.
    """
    size, devices = settings.world_size, cuda_devices()
    settings.require_devices(devices, "this machine has")
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    scratch = _scratch(out_dir)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id=str(uuid4()),
        rdzv_backend="c10d",
        # A file: who reaches a store at a port can have torch unpickle what he puts there.
        rdzv_endpoint=str(scratch / "rendezvous"),
        rdzv_configs={"store_type": "file"},
        local_addr="localhost",  # a machine's own name need not resolve
        max_restarts=0,
        monitor_interval=_WATCH_SECONDS,
        shutdown_timeout=_GRACE_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch)),
        virtual_local_rank=devices > 0,
    )
    os.environ |= _environment(size, devices, scratch)
    try:
        elastic_launch(config, sys.executable)(*words)
    except ChildFailedError as e:
        raise _told(e.failures, size) from None
    except SignalException as e:
        raise Interrupted(
            f"{e.sigval.name}: nothing was written; run the same command again"
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        remove_unfinished(out_dir)  # of a rank that was ended


def _scratch(out_dir: Path) -> Path:
    """An empty folder for torch's error files and what ranks put into a temporary folder."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for left in out_dir.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(left)
    folder = out_dir / f"{_SCRATCH_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    return folder


def _environment(size: int, devices: int, scratch: Path) -> dict[str, str]:
    """What the ranks' environment has besides this process's."""
    added = {"TMPDIR": str(scratch)}
    if not devices:
        cores = len(os.sched_getaffinity(0))
        added["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // size)))
        # One machine: the ranks talk on the loopback device, and its name need not resolve.
        added["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return added


def _told(failures: Mapping[int, ProcessFailure], size: int) -> RankFailed:
    """The error of the rank that failed by itself.

    failures: by rank, in the order in which torch noticed them; it ended the others by SIGTERM.
    """
    number, failure = min(failures.items(), key=lambda item: item[1].exitcode == -signal.SIGTERM)
    who = f"rank {number} of {size} (pid {failure.pid})"
    if failure.exitcode == -signal.SIGKILL:
        how = "was killed, which is how the kernel ends a program when memory is short"
    elif failure.exitcode < 0 and not isinstance(failure.message, dict):  # else it had its say
        how = f"was ended by {failure.signal_name()}"
    elif not isinstance(failure.message, dict):  # it left no exception
        how = f"ended with exit code {failure.exitcode}"
    else:
        kind, _, text = failure.message["message"].partition(": ")
        expected = failure.exitcode != 1
        how = text if expected else f"{kind}: {text}; its traceback is above"
        return RankFailed(f"rank {number} of {size}: {how}", failure.exitcode)
    code = failure.exitcode if failure.exitcode >= 0 else 128 - failure.exitcode
    return RankFailed(
        f"{who} {how}; nothing was written, and the same command takes the step anew", code
    )
