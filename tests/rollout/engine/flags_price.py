"""`python -m tests.rollout.engine.flags_price -- "--block-size 64" …`: a rollout by flags.

On a CPU. Plays the bench's rollout, all attempts in flight, by turns on a server as a run starts it
and on one with each string of flags added, which vLLM reads last; `--no-enforce-eager` also lets
torch compile what vLLM lets it, which with LoRA is no model. Prints seconds, ids sampled in a
second, and the share of prompt ids that were read anew. Flags with which vLLM does not start are
told and left out.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Annotated
from unittest.mock import patch

import numpy as np
import typer

from fieldkit.errors import Unavailable
from rollout.engine import vllm_server
from rollout.engine.target import Served
from rollout.transcript import ChatRenderer
from tests.bench.measurements import in_turn, ratio_by_round
from tests.bench.rollouts import empty_cache, play, served
from tests.bench.work import Work
from tests.rollout.engine.order_price import prompt_ids

AS_IT_IS = "as it is"
COMPILED = "--no-enforce-eager"


def main(
    flags: Annotated[list[str], typer.Argument(help="Flags of vLLM, a string for each server.")],
    rounds: Annotated[int, typer.Option(min=1, help="Servers of each kind.")] = 2,
    plays: Annotated[int, typer.Option(min=1, help="Rollouts of each server.")] = 2,
) -> None:
    """Measure all by turns; the first rollout of a server only warms it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end as on Ctrl-C
    work, found = Work.of_preset(), dict[str, list[float]]()
    chat = ChatRenderer(work.model)
    for name, _ in in_turn((AS_IT_IS, *flags), rounds):
        words = [] if name == AS_IT_IS else shlex.split(name)
        try:
            with _added(words), served(work, work.config.engine) as server:
                play(work, server, chat, 0)
                for _ in range(plays):
                    found.setdefault(name, []).append(_measured(work, server, chat, name))
        except Unavailable as e:
            if name == AS_IT_IS:
                raise
            print(f"{name}: {e}", flush=True)
    for name, speeds in found.items():
        if len(speeds) < rounds * plays:  # one of its servers did not start
            continue
        ratio = ratio_by_round(speeds, found[AS_IT_IS])
        print(f"{name}: {median(speeds):.1f} ids a second in the median, ratio {ratio:.2f}")


def _measured(work: Work, server: Served, chat: ChatRenderer, name: str) -> float:
    """Ids sampled in a second of a rollout."""
    empty_cache(server)
    before = prompt_ids(server)
    values = play(work, server, chat, 0)
    asked, anew = np.subtract(prompt_ids(server), before)
    speed = values["sampled"] / values["seconds"]
    print(
        f"{name}: {values['seconds']:.1f} s, {speed:.1f} ids a second; of {asked:,.0f} prompt ids"
        f" {anew / asked:.0%} read anew",
        flush=True,
    )
    return float(speed)


@contextmanager
def _added(words: list[str]) -> Iterator[None]:
    """Servers are started with these flags after their own."""
    flags, environment = vllm_server._cpu_flags, vllm_server.environment
    compiles = {"TORCH_COMPILE_DISABLE": "0"} if COMPILED in words else {}
    with (
        patch.object(vllm_server, "_cpu_flags", lambda *a: [*flags(*a), *words]),
        patch.object(vllm_server, "environment", lambda *a: {**environment(*a), **compiles}),
    ):
        yield


if __name__ == "__main__":
    typer.run(main)
