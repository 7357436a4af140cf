"""`python -m tests.rollout.engine.preload_price`: sampling with what a server can preload.

Starts a server of each kind with the default model and adapter, and samples by turns the first
reply to 32 tasks of the pool at once. Prints for each kind the median of tokens a second, its ratio
to the first kind, the mean difference of sampled logprobs to those that the server computes of the
same ids as a prompt, the memory that the server holds, and the machine's load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.gate.memory import GIB, held_by
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import family
from rollout.engine import preload, vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.replica import ENGINE
from rollout.engine.serve import ensure_engine, stop_engine
from rollout.engine.target import Served
from rollout.envs.registry import opening_of
from rollout.tasks import read_tasks
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model
from tests.rollout.engine.lora_price import EPISODES, _measure

OPENMP = Path(sys.prefix) / "lib" / "libiomp5.so"
"""Intel's OpenMP, which torch's wheels bring."""


def environment(kind: str) -> dict[str, str]:
    """What this process preloads into its children under a kind ("+" joins libraries)."""
    env: dict[str, str] = {}
    for word in kind.split("+"):
        if word == "tcmalloc":
            env = preload.preloaded(env, preload.tcmalloc())
        elif word == "openmp":
            env = preload.preloaded(env, str(OPENMP))
    return {preload.VARIABLE: env.get(preload.VARIABLE, "")}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each kind.")] = 6,
    kinds: Annotated[str, typer.Option(help="Kinds, with commas between them.")] = (
        "plain,tcmalloc,tcmalloc+openmp,tcmalloc+compiled"
    ),
) -> None:
    """Start one server of each kind and measure them by turns, after one sample that warms each."""
    model = build_model()
    chat = ChatRenderer(model)
    openings = [opening_of(t) for t in read_tasks(ROOT / "data" / "pool.jsonl")[:EPISODES]]
    prompts = [chat.start(o.messages, o.tools).prompt_ids for o in openings]
    named = kinds.split(",")
    found: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in named}
    with contextlib.ExitStack() as servers:
        served = {kind: servers.enter_context(_server(kind, model)) for kind in named}
        for number in range(rounds + 1):
            for kind in named if number % 2 == 0 else named[::-1]:
                speeds, drifts = asyncio.run(_measure(served[kind], chat, prompts, samples=0))
                if number:
                    found[kind][0].extend(speeds)
                    found[kind][1].extend(drifts)
    first = statistics.median(found[named[0]][0])
    for kind in named:
        median = statistics.median(found[kind][0])
        told = ", ".join(f"{speed:.0f}" for speed in found[kind][0])
        print(
            f"{kind}: median {median:.0f} tokens/s ({told}), ratio {median / first:.2f}, "
            f"|sampled - scored| {statistics.fmean(found[kind][1]):.5f}"
        )
    print("load " + "/".join(f"{value:.1f}" for value in os.getloadavg()))


@contextlib.contextmanager
def _server(kind: str, model: Path) -> Iterator[Served]:
    """A server of this kind; what it holds is printed at its end."""
    os.environ |= environment(kind)
    flags = vllm_server._cpu_flags
    if "compiled" in kind:
        vllm_server._cpu_flags = lambda settings: flags(settings)[1:]
    settings = EngineSettings(tcmalloc=False)  # this module preloads it
    with tempfile.TemporaryDirectory() as run:
        adapter = ROOT / "adapters" / "smol-warm"
        (served,) = ensure_engine(Path(run), model, settings, adapter, "v0", print)
        vllm_server._cpu_flags = flags
        try:
            yield served
            owned = Ledger(Path(run) / LEDGER_FILE).get(ENGINE)
            assert owned is not None
            held = sum(map(held_by, family(owned.marker))) / GIB
            print(f"{kind}: ready after {served.seconds:.0f} s, holds {held:.2f} GiB")
        finally:
            stop_engine(Path(run))


if __name__ == "__main__":
    typer.run(main)
