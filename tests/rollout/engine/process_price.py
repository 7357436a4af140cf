"""`python -m tests.rollout.engine.process_price`: vLLM that computes in its scheduler, or beside.

Starts a server by turns with `engine.one_process` on and off, and beside as many busy programs as
are asked for plays 8 tasks four times each on it: once to warm it, and once with an empty
prefix cache. Prints the seconds of the start and of that rollout, and a command's milliseconds.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Annotated

import typer

from rollout.transcript import ChatRenderer
from tests.bench.measurements import in_turn, ratio_by_round
from tests.bench.rollouts import empty_cache, play, served
from tests.bench.work import Work
from tests.rollout.engine.wait_price import at_work

WAYS = {"one process": True, "two": False}
START, ROLLOUT, COMMAND = "start, s", "rollout, s", "command, ms"


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Times each is measured.")] = 3,
    busy: Annotated[int, typer.Option(min=0, help="Programs that work beside it.")] = 0,
) -> None:
    """Measure both by turns."""
    work = Work.of_preset()
    chat = ChatRenderer(work.model)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with at_work(busy):
        for way, _ in in_turn(list(WAYS), rounds):
            found[way].append(seconds(work, chat, WAYS[way]))
            print(f"{way}: {found[way][-1]}", flush=True)
    for what in (START, ROLLOUT, COMMAND):
        one, two = ([taken[what] for taken in found[way]] for way in WAYS)
        print(
            f"{what}: {statistics.median(one):.1f} in one process, {statistics.median(two):.1f} in"
            f" two (medians); ratio {ratio_by_round(two, one):.2f}"
        )


def seconds(work: Work, chat: ChatRenderer, one_process: bool) -> dict[str, float]:
    """Of a start with its proof, and of a rollout after it; milliseconds of a sandboxed command."""
    began = time.monotonic()
    with served(work, replace(work.config.engine, one_process=one_process)) as server:
        started = time.monotonic() - began
        play(work, server, chat, 0)
        empty_cache(server)
        played = play(work, server, chat, 0)
    command = 1000 * played["command_seconds"] / played["commands"]
    return {START: started, ROLLOUT: played["seconds"], COMMAND: command}


if __name__ == "__main__":
    typer.run(main)
