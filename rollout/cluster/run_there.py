"""Runs a command on a node of the cluster as if it ran here: `python -m rollout.cluster.run_there`.

Its output comes out of this program, its exit code is this program's, and it ends with this
program, however that goes. So whoever starts it needs to know nothing of a cluster: the train phase
runs the trainer through it, and a server's entry in the ledger is this program. `placed.prefix` is
how it is typed. A lost node is exit code `placed.LOST`: the train phase reads it, and begins the
step once more. Nobody reads a server's: one that has ended is started anew by whoever needs it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldkit.errors import FieldkitError, Unavailable
from fieldkit.files.json_text import parse_json
from rollout.cluster.cluster_settings import ClusterSettings, Needs, told_needs
from rollout.cluster.node_process import OUT, Heard, NodeProcess, Place
from rollout.cluster.placed import LOST
from rollout.cluster.ray_cluster import joined, lost_errors, no_room_now, options, require_room
from rollout.engine.vllm_server import API_KEY_VARIABLE

CHECKOUT = Path(__file__).resolve().parents[2]

_TAKEN_ALONG = (API_KEY_VARIABLE, "PYTHONPATH", "OMP_NUM_THREADS")
"""Variables of this program's environment that the command has too. All others are the node's. The
ledger's marks are not among them: it owns this program, and its pids mean nothing elsewhere."""
_OURS = "GRPO_"
"""And those that begin so."""

_WAIT_SECONDS = 1.0
_END_SECONDS = 20.0
"""How long a command that was asked to end may take, its node's own grace included."""


class NodeLost(Unavailable):
    """The node is gone, and the program with it."""


class _Ending:
    """Whether this program was told to end."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True


def run(words: argparse.Namespace, command: Sequence[str]) -> int:
    """Run it to its end; its exit code. Raises as `joined` and `require_room`, and `Unavailable`
    for a node that cannot start it or is lost."""
    cluster = ClusterSettings(kind="ray", address=words.address, room_seconds=words.room_seconds)
    needs: Needs = parse_json(words.needs, "--needs")
    ending = _Ending()
    with joined(cluster) as ray:
        require_room(ray, needs, words.what, words.key)
        actor = ray.remote(NodeProcess).options(**options(needs)).remote()
        try:
            place = _placed(ray, actor, cluster, needs, words, ending)
            command = _with_port(ray, actor, place, words, command)
            refused = ray.get(actor.start.remote(command, _environment(), str(CHECKOUT)))
            if refused:
                raise Unavailable(
                    f"{words.what} cannot start on node {place.node}: {refused}; every node has to"
                    " see the checkout, the model and the run folder under the paths that they have"
                    " here (docs/SCALE.md)"
                )
            return _followed(ray, actor, ending)
        except lost_errors(ray) as e:
            raise NodeLost(
                f"the node that {words.what} was on is lost ({_first_line(e)}). What was finished"
                " is kept, and the same command goes on; `ray status` shows the nodes"
            ) from e


def _placed(
    ray: Any,
    actor: Any,
    cluster: ClusterSettings,
    needs: Needs,
    words: argparse.Namespace,
    ending: _Ending,
) -> Place:
    """Wait until a node has room for it."""
    began = time.monotonic()
    placed = actor.place.remote()
    while not ray.wait([placed], timeout=_WAIT_SECONDS)[0]:
        if ending.asked:
            raise Unavailable(f"{words.what} was told to end before a node had room for it")
        if time.monotonic() - began > cluster.room_seconds:
            raise no_room_now(needs, words.what, words.key, cluster.room_seconds)
    try:
        place: Place = ray.get(placed)
    except lost_errors(ray) as e:
        raise Unavailable(
            f"a node cannot start {words.what}: {_first_line(e)}; Ray has to be started there with"
            f" the checkout's own packages: `{Path(sys.executable).parent}/ray start`"
        ) from e
    print(
        f"{words.what}: on node {place.node}, with {told_needs(needs)}", file=sys.stderr, flush=True
    )
    return place


def _with_port(
    ray: Any, actor: Any, place: Place, words: argparse.Namespace, command: Sequence[str]
) -> list[str]:
    """The command with the address that it is to listen at, which is told to --tell."""
    if words.tell is None:
        return list(command)
    port = ray.get(actor.port.remote(words.port, place.host))
    with os.fdopen(words.tell, "w") as tell:
        json.dump({"node": place.node, "host": place.host, "port": port}, tell)
    return [*command, place.host, str(port)]


def _environment() -> dict[str, str]:
    return {n: v for n, v in os.environ.items() if n in _TAKEN_ALONG or n.startswith(_OURS)}


def _followed(ray: Any, actor: Any, ending: _Ending) -> int:
    """Pass on what the command writes, until it ends; its exit code, 128 + n for signal n."""
    asked_at: float | None = None
    heard = actor.read.remote()
    while True:
        if ending.asked and asked_at is None:
            asked_at = time.monotonic()
            actor.end.remote()
        if not ray.wait([heard], timeout=_WAIT_SECONDS)[0]:
            if asked_at is not None and time.monotonic() - asked_at > _END_SECONDS:
                return 128 + signal.SIGKILL  # the end of this program ends it
            continue
        got: Heard = ray.get(heard)
        for where, data in got.chunks:
            out = sys.stdout if where == OUT else sys.stderr
            out.buffer.write(data)
            out.flush()
        if got.code is not None:
            return got.code if got.code >= 0 else 128 - got.code
        heard = actor.read.remote()


def _first_line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return line.replace("error: ", "error, ")  # whoever reads our error looks for the last of these


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--what", required=True)
    parser.add_argument("--needs", required=True)
    parser.add_argument("--room-seconds", type=float, required=True)
    parser.add_argument("--tell", type=int, help="descriptor that gets host and port as JSON")
    parser.add_argument("--port", type=int, default=0, help="port for --tell; 0: any free one")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    words = parser.parse_args()
    command = [word for i, word in enumerate(words.command) if i or word != "--"]
    try:
        return run(words, command)
    except FieldkitError as e:
        print(f"error: {e}", file=sys.stderr)
        return LOST if isinstance(e, NodeLost) else e.exit_code


if __name__ == "__main__":
    sys.exit(main())
