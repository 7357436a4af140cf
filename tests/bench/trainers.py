"""The trainer's passes: ours, the plain rebuild, and this machine's matrix products.

Each measurement is a process of its own with the same preloads, threads, dtype, bundle and adapter,
so that memory can be compared. Then ours with other micro-batches and dtypes.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from functools import partial as bind
from pathlib import Path
from typing import Any

from fieldkit.files.atomic import write_json
from rollout.engine.vllm_server import computing
from tests.bench import child
from tests.bench.measurements import Measurements, Values, in_turn
from tests.bench.work import Work
from trainer.settings import CPU_TOKENS

PART, SIZES = "trainer", "trainer by micro-batch and dtype"
OURS, PLAIN, LIMIT = "ours", "plain rebuild", "matrix products"
KINDS = {OURS: "ours", PLAIN: "plain", LIMIT: "matmul"}
MICRO_BATCHES = (512, 768, CPU_TOKENS, 2048)
CHECKPOINTED = (256, CPU_TOKENS)
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
"""Of the trainer, and of the server that it follows."""
STOCK_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "1024"}
"""How many kernels the libraries keep by themselves. Importing `trainer.scoring.policy` asks for
fewer, which is part of ours."""


def measure(work: Work, taken: Measurements, rounds: int, bundle: Path) -> None:
    """Measure every contestant on the bundle, then ours in every size."""
    for name, round_ in in_turn(tuple(KINDS), rounds):
        taken.take(PART, name, round_, bind(passes, work, bundle, KINDS[name]))
    for name, changes in sizes(work.dtype).items():
        taken.take(SIZES, name, 0, bind(passes, work, bundle, "ours", **changes))


def sizes(served: str) -> dict[str, dict[str, Any]]:
    """Settings by the row's name: the micro-batches in the dtype that goes with the server's, two
    of them with activations computed again, and the default one in the other dtype: without bf16
    instructions that one is several times slower."""
    own, other = sorted(DTYPES, key=lambda dtype: DTYPES[dtype] != served)
    again = {"gradient_checkpointing": True}
    rows: list[tuple[str, int, dict[str, bool]]] = [
        *((own, tokens, again) for tokens in CHECKPOINTED),
        *((own, tokens, {}) for tokens in MICRO_BATCHES),
        (other, CPU_TOKENS, {}),
    ]
    return {
        f"{tokens:,} tokens, {dtype}{', computed again' if more else ''}": {
            "dtype": dtype,
            "serving_dtype": DTYPES[dtype],
            "tokens_per_microbatch": tokens,
            **more,
        }
        for dtype, tokens, more in rows
    }


def trainer_environment(work: Work, *, stock: bool = False) -> dict[str, str]:
    """What the train phase gives to its trainer; stock: but for what only ours asks for."""
    return {**computing(os.environ, work.config.engine), **(STOCK_KERNELS if stock else {})}


def words(work: Work, bundle: Path, settings: Path) -> list[str]:
    """The options that both programs of the bench take."""
    return [
        *("--model", str(work.model), "--adapter", str(work.adapter.path)),
        *("--bundle", str(bundle), "--settings-json", str(settings)),
    ]


def write_settings(path: Path, work: Work, **changes: Any) -> None:
    """[trainer] as the trainer reads it: the night's but for `changes`."""
    write_json(path, asdict(work.trainer_with(**changes)))


def passes(work: Work, bundle: Path, kind: str, **changes: Any) -> Values:
    """Run one measurement in its own process, with the night's settings but for `changes`."""
    with tempfile.TemporaryDirectory() as temporary:
        settings = Path(temporary) / "settings.json"
        write_settings(settings, work, **changes)
        options = words(work, bundle, settings)
        env = trainer_environment(work, stock=kind == KINDS[PLAIN])
        found: Values = json.loads(child.run("tests.bench.trainer_run", kind, *options, env=env))
    return found
