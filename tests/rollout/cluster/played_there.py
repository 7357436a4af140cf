"""The player that tests have a node make: the test's own, with a clock that stands still."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rollout.engine.router import samplers
from rollout.engine.target import Served
from rollout.player import Player
from rollout.policies import sampled_for
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.phases.player_there import in_turn
from tests.rollout.scripted import SHAPED, worlds

LIMITS = EpisodeSettings(max_turns=3, max_new_tokens=16, max_model_len=512)


@asynccontextmanager
async def still_player(
    servers: Sequence[Served], model_dir: Path, on_line: Callable[[str], None], number: int = 0
) -> AsyncIterator[Player]:
    chat = ChatRenderer(model_dir)
    reached = in_turn(servers, number)
    with tempfile.TemporaryDirectory(prefix="grpo-") as scratch:
        async with samplers(reached, (chat.eot_id,), on_line) as sampler_of:
            yield Player(
                policy=sampled_for(sampler_of, chat),
                worlds=worlds(Path(scratch)),
                settings=LIMITS,
                adapter_sha=servers[0].adapter_sha or "",
                policy_version=servers[0].version,
                reward=SHAPED,
                clock=lambda: 0.0,
            )
