"""What a turn costs over OpenEnv's wire.

    python -m tests.rollout.envs.openenv.openenv_price [PYTHON]

One session, then 64 and 256 at once, on the guessing game of a real server (docs/openenv) where
PYTHON has `openenv`, else on the double. Beside it the same messages without our client: the
difference is our overhead a turn.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from websockets.asyncio.client import connect

from rollout.envs.openenv.openenv_toolbox import OpenEnv, Source
from rollout.envs.tool_calls import ToolCall
from scripts.base.checkout import ROOT
from tests.rollout.envs.openenv.openenv_local import DOUBLE, THIS_PYTHON, begin

ROUNDS = 5
AT_ONCE = {1: 400, 64: 200, 256: 50}
"""Sessions at once, and turns of each."""


async def bare(url: str, turns: int) -> float:
    """Milliseconds a turn of plain `websockets`."""
    async with connect(f"{url.replace('http', 'ws')}/ws", ping_interval=None) as socket:
        await socket.send(json.dumps({"type": "reset", "data": {"seed": 3}}))
        await socket.recv()
        began = time.perf_counter()
        for _ in range(turns):
            await socket.send(json.dumps({"type": "step", "data": {"number": 1}}))
            json.loads(await socket.recv())
        return (time.perf_counter() - began) * 1000 / turns


async def ours(env: OpenEnv, turns: int) -> float:
    """Milliseconds a turn of an episode."""
    episode = await begin(env, {"seed": 3})
    began = time.perf_counter()
    for _ in range(turns):
        await episode.call(ToolCall("guess", {"number": 1}))
    spent = (time.perf_counter() - began) * 1000 / turns
    await episode.close()
    return spent


async def main() -> None:
    real = len(sys.argv) > 1
    serve = "docs/openenv/guess_server.py:many" if real else f"{DOUBLE}:many"
    python = Path(sys.argv[1]) if real else THIS_PYTHON
    folder = Path(tempfile.mkdtemp())
    source = Source("guess", serve=serve, python=python, sessions=max(AT_ONCE))
    env = OpenEnv(source, ROOT, folder / "ledger.json", folder, print)
    try:
        await ours(env, 50)  # warm
        url = await env.address()
        for n, turns in AT_ONCE.items():
            pairs = []
            for _ in range(ROUNDS):
                alone = await asyncio.gather(*(bare(url, turns) for _ in range(n)))
                through = await asyncio.gather(*(ours(env, turns) for _ in range(n)))
                pairs.append((statistics.mean(alone), statistics.mean(through)))
            plain, client = (statistics.median(p) for p in zip(*pairs, strict=True))
            print(
                f"{n} at once: an episode's turn takes {client:.2f} ms, of which"
                f" {client - plain:.2f} are our client's"
            )
    finally:
        env.stop()


if __name__ == "__main__":
    asyncio.run(main())
