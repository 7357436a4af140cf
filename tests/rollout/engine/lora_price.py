"""`python -m tests.rollout.engine.lora_price`: a server with the plugin for vLLM and without it.

Starts the server with the default model and adapter, by turns with the plugin and without, and
samples the first reply to 32 tasks of the pool at once, several times a server. Prints of each kind
tokens a second, the mean difference of sampled logprobs to those that the server computes of the
same ids as a prompt, and the seconds of a start, the proof of the adapter included.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from rollout.engine.client import Completion, EngineClient
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.serve import ensure_engine, stop_engine
from rollout.engine.target import Served
from rollout.envs.registry import opening_of
from rollout.settings import neutral_sampling
from rollout.tasks import read_tasks
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model

EPISODES = 32
TOKENS = 64


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Servers of each kind.")] = 2,
    samples: Annotated[int, typer.Option(min=1, help="Times each server samples.")] = 3,
) -> None:
    """Measure both kinds by turns; the first sample of a server warms it and is not counted."""
    model = build_model()
    chat = ChatRenderer(model)
    openings = [opening_of(t) for t in read_tasks(ROOT / "data" / "pool.jsonl")[:EPISODES]]
    prompts = [chat.start(o.messages, o.tools).prompt_ids for o in openings]
    speeds: dict[bool, list[float]] = {True: [], False: []}
    drifts: dict[bool, list[float]] = {True: [], False: []}
    starts: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for plugin in (number % 2 == 0, number % 2 == 1):
            settings = EngineSettings(cpu_patches=plugin)
            with tempfile.TemporaryDirectory() as run:
                adapter = ROOT / "adapters" / "smol-warm"
                began = time.monotonic()
                (served,) = ensure_engine(Path(run), model, settings, adapter, "v0", print)
                starts[plugin].append(time.monotonic() - began)
                try:
                    found = asyncio.run(_measure(served, chat, prompts, samples))
                finally:
                    stop_engine(Path(run))
            speeds[plugin] += found[0]
            drifts[plugin] += found[1]
    speed = {plugin: statistics.median(found) for plugin, found in speeds.items()}
    start = {plugin: statistics.median(found) for plugin, found in starts.items()}
    for plugin, name in ((True, "plugin"), (False, "as it is")):
        print(
            f"{name}: {speed[plugin]:.0f} tokens/s, median of {len(speeds[plugin])};"
            f" {statistics.fmean(drifts[plugin]):.5f}; a start takes {start[plugin]:.1f} s, median"
            f" of {len(starts[plugin])}"
        )
    ratio, start_ratio = speed[True] / speed[False], start[False] / start[True]
    print(f"ratio {ratio:.2f}; of the starts {start_ratio:.2f}")


async def _measure(
    served: Served, chat: ChatRenderer, prompts: list[tuple[int, ...]], samples: int
) -> tuple[list[float], list[float]]:
    """Tokens a second of every sample but the first, and |sampled − scored| logprobs by episode."""
    sampling = neutral_sampling(1.0, TOKENS)
    client = EngineClient(
        served.base_url, served.api_key, served.model_name, stop_token_ids=(chat.eot_id,)
    )
    speeds: list[float] = []
    async with client:
        replies: list[Completion] = []
        for sample in range(samples + 1):
            began = time.monotonic()
            replies = await asyncio.gather(
                *(client.sample(p, sampling, 1000 * sample + i) for i, p in enumerate(prompts))
            )
            speeds.append(sum(len(r.ids) for r in replies) / (time.monotonic() - began))
        drifts = [await _drift(client, p, r) for p, r in zip(prompts[:8], replies[:8], strict=True)]
    return speeds[min(1, samples) :], drifts


async def _drift(client: EngineClient, prompt: tuple[int, ...], reply: Completion) -> float:
    scored = (await client.logprobs((*prompt, *reply.ids)))[len(prompt) - 1 :]
    return statistics.fmean(abs(a - b) for a, b in zip(reply.logprobs, scored, strict=True))


if __name__ == "__main__":
    typer.run(main)
