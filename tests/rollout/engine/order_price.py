"""`python -m tests.rollout.engine.order_price`: which of the waiting requests goes first.

Evaluates the default warm start on held-out tasks, by turns with the requests of earlier attempts
first, as phases do, and first come, first served. Prints seconds, the share of prompt ids that the
server had to read anew, and how many tasks passed.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import httpx
import typer

from rollout.arm import evaluate_arm
from rollout.engine.router import samplers
from rollout.engine.target import Served
from rollout.policies import sampled_for
from rollout.tasks import read_tasks
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from tests.bench.measurements import in_turn, ratio_by_round
from tests.bench.rollouts import _client, empty_cache, served
from tests.bench.work import Work

IN_ORDER, AS_THEY_COME = "earlier attempts first", "first come, first served"


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Evaluations of each kind.")] = 2,
    tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks, from the first.")] = 158,
) -> None:
    """Measure both by turns on one server, whose prefix cache is emptied before each."""
    work = Work.of_preset()
    chat = ChatRenderer(work.model)
    seconds: dict[str, list[float]] = {IN_ORDER: [], AS_THEY_COME: []}
    with served(work, work.config.engine) as server:
        for kind, _ in in_turn([IN_ORDER, AS_THEY_COME], rounds):
            empty_cache(server)
            before, began = prompt_ids(server), time.monotonic()
            passed = asyncio.run(_evaluate(work, server, chat, kind, tasks))
            seconds[kind].append(time.monotonic() - began)
            after = prompt_ids(server)
            asked, anew = after[0] - before[0], after[1] - before[1]
            print(
                f"{kind}: {seconds[kind][-1]:.0f} s; of {asked:,.0f} prompt ids {anew / asked:.0%}"
                f" read anew; {passed} of {tasks} passed",
                flush=True,
            )
    medians = {kind: statistics.median(found) for kind, found in seconds.items()}
    print(*(f"{kind}: {median:.0f} s in the median" for kind, median in medians.items()), sep="; ")
    print(f"ratio {ratio_by_round(seconds[AS_THEY_COME], seconds[IN_ORDER]):.2f}")


async def _evaluate(work: Work, server: Served, chat: ChatRenderer, kind: str, n: int) -> int:
    """Play the first n held-out tasks once each; how many passed."""
    config = work.config
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        async with (
            _client(server, chat) as client,
            samplers([server], (chat.eot_id,), print) as in_order,
        ):
            sampler_of = in_order if kind == IN_ORDER else lambda task_id: client
            player = replace(
                work.player(client, chat, 0, scratch),
                policy=sampled_for(sampler_of, chat),
                settings=config.rollout.at(config.eval.temperature),
            )
            held_out = read_tasks(ROOT / config.data.heldout)[:n]
            summary = await evaluate_arm(kind, held_out, player=player, evals=scratch / "evals")
    return summary.n_passed


def prompt_ids(server: Served) -> tuple[float, float]:
    """The server's counters: prompt ids of all requests, and those that it computed."""
    headers = {"Authorization": f"Bearer {server.api_key}"}
    text = httpx.get(f"{server.base_url}/metrics", headers=headers, trust_env=False).text
    counts = [line.split() for line in text.splitlines() if line.startswith("vllm:prompt_tokens")]

    def total(name: str, label: str = "") -> float:
        return sum(
            float(value) for key, value in counts if key.startswith(f"{name}{{") and label in key
        )

    anew = total("vllm:prompt_tokens_by_source_total", 'source="local_compute"')
    return total("vllm:prompt_tokens_total"), anew


if __name__ == "__main__":
    typer.run(main)
