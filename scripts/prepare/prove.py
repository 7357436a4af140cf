"""`grpo prove`: canary.json for an adapter that another trainer made.

With it a server can be checked for whether it uses the adapter. The sequences are the openings of a
few held-out tasks with the first command of their oracles, as in a rollout.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.records import Task
from fieldkit.training.canary_record import Canary
from rollout.engine.engine_settings import EngineSettings
from rollout.envs.registry import opening_of
from rollout.tasks import read_tasks
from rollout.transcript import ChatRenderer
from rollout.yardsticks import oracle_replies

if TYPE_CHECKING:
    from trainer.settings import ServingDtype


def openings(tasks: Path, model_dir: Path, count: int) -> list[list[int]]:
    """Prompt and oracle's first reply of the first `count` tasks, as ids."""
    renderer = ChatRenderer(model_dir)
    return [_opening(task, renderer) for task in read_tasks(tasks)[:count]]


def _opening(task: Task, renderer: ChatRenderer) -> list[int]:
    opening = opening_of(task)
    prompt = renderer.start(opening.messages, opening.tools).prompt_ids
    return [*prompt, *renderer.encode_reply(oracle_replies(task)[0], prompt)]


def prove(adapter: Path, model_dir: Path, tasks: Path, serving: ServingDtype) -> Canary:
    """Write canary.json into `adapter`, compared with the base; return it.

    serving: the dtype of the server ("auto": that of one on this machine). Raises `BadInput` for an
    adapter that does not fit the model.
    """
    from rollout.engine.vllm_server import serving_dtype
    from trainer.canary import SEQUENCES, prove_adapter

    if not adapter.is_dir():
        raise BadInput(f"{adapter}: no such adapter folder")
    served = serving_dtype(EngineSettings(dtype=serving), model_dir)
    return prove_adapter(adapter, model_dir, openings(tasks, model_dir, SEQUENCES), serving=served)
