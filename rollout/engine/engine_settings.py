"""How the engine serves: the table [engine] of run.toml.

Apart from what obeys it, because every command reads run.toml and few start a server.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Literal
from urllib.parse import urlsplit

from annotated_types import Ge, Le
from pydantic import FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from fieldkit.client.address import is_http
from fieldkit.errors import BadInput
from fieldkit.settings import Change, Choice, NoCondition, Unit, settings
from rollout.engine.lifecycle import AUTO, CHOICES

_LAST_PORT = 65_535


@settings("engine", retired={"lora_matmul": None})
class EngineSettings:
    """How the engine serves."""

    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    """Dtype of weights and activations. auto: the folder's own, float32 made bfloat16; float32 on
    a CPU without bfloat16 instructions."""
    max_model_len: Annotated[PositiveInt, Unit("tokens"), NoCondition] = 2048
    """Most tokens of prompt and completion together."""
    kv_cache_gib: Annotated[PositiveFloat, Unit("GiB"), Change.MACHINE] = 1.0
    """Size of the KV cache, on a CPU."""
    gpu_memory_utilization: Annotated[PositiveFloat, Le(1), Change.MACHINE] = 0.4
    """Share of the GPU's memory that the engine takes, weights included, on CUDA."""
    block_size: Annotated[PositiveInt, Unit("tokens"), Change.MACHINE] = 32
    """Tokens a KV block, on a CPU. Turns are short: small blocks are found again more often."""
    max_num_seqs: Annotated[PositiveInt, Change.MACHINE] = 64
    """Sequences decoded at the same time. A server of the run gets a quarter more requests; the
    others wait, and those of the attempts that began first go first, so that an attempt's next turn
    finds its prefix in the KV cache."""
    max_adapters: Annotated[PositiveInt, Change.MACHINE] = 8
    """Most adapters that one server holds."""
    cpu_patches: Annotated[bool, Change.MACHINE] = True
    """On a CPU: replace what costs vLLM there the most beside its matrix products: LoRA, sampling
    and norms, and have a conversation's next turn read only what is new
    (`rollout.engine.vllm_plugin`). Results are the same but for rounding."""
    tcmalloc: Annotated[bool, Change.MACHINE, NoCondition] = True
    """On a CPU: preload tcmalloc into engine and trainer if it is installed
    (`rollout.engine.preload`). It changes only their speed."""
    one_process: Annotated[bool, Change.MACHINE, NoCondition] = True
    """On a CPU: compute in vLLM's scheduling process, not in one beside it as vLLM has it, where
    the run has one server with one copy of the model and `threads_bind` is "auto". It changes no
    result."""
    threads_bind: Annotated[str, Change.MACHINE] = "auto"
    """VLLM_CPU_OMP_THREADS_BIND, on a CPU. auto: every core that this process may use."""
    lifecycle: Annotated[str, Choice(CHOICES), Change.MACHINE] = AUTO
    """How a new adapter reaches the server."""
    keep_trainer: Annotated[bool, Change.MACHINE, NoCondition] = True
    """Keep the trainer's process with its loaded model from step to step, where the lifecycle lets
    it stand beside the engine; begin it while the engine loads, so that a step finds its libraries
    imported. It changes no result."""
    start_seconds: Annotated[PositiveFloat, Unit("seconds"), Change.MACHINE] = 300.0
    """How long a server may take until it answers. A trainer is ended that says nothing for four
    times as long, and for three times the longest of its last trainings."""
    stop_seconds: Annotated[NonNegativeFloat, Unit("seconds"), Change.MACHINE] = 20.0
    """How long a server may take to end after SIGTERM before it is killed."""
    memory_seconds: Annotated[NonNegativeFloat, Unit("seconds"), Change.MACHINE] = 30.0
    """How long its memory may take to come back afterwards."""
    memory_margin_gib: Annotated[FiniteFloat, Unit("GiB"), Change.MACHINE] = 1.0
    """How much of it may be missing, because other programs use memory too."""
    trainer_gib: Annotated[NonNegativeFloat | None, Unit("GiB"), Change.MACHINE] = None
    """Memory to leave for the trainer when both run side by side. Left out: the trainer's own
    forecast (`trainer.footprint`), or nothing without a trainer."""
    port: Annotated[int, Ge(0), Le(_LAST_PORT), Change.MACHINE] = 0
    """TCP port on loopback, of further replicas the next ones; 0 takes free ones."""
    replicas: Annotated[NonNegativeInt, Change.MACHINE] = 1
    """How many servers the run starts and ends on this machine. They divide its processors, or its
    GPUs; each has a KV cache of its own. 0: none, only those in `urls`."""
    urls: Annotated[list[str], Change.MACHINE] = field(default_factory=list)
    """Addresses of your own vLLM servers that play too, such as `["http://gpu-box:8000"]`. The run
    gives them adapters; it never starts or ends them. docs/engines.md says how to start one."""
    keys_from: Annotated[list[str], Change.MACHINE] = field(default_factory=list)
    """Where the API key of each address is: the name of an environment variable, or a file if it
    contains a slash. One is for all addresses."""
    shared: Annotated[str, Change.MACHINE] = ""
    """A folder that the servers in `urls` can read, by its whole path or from `~` on; adapters are
    copied into it. "": they see the run folder under the path that it has here."""
    shared_there: Annotated[str, Change.MACHINE] = ""
    """The path of `shared` on the servers in `urls`, if it is another one there."""
    data_parallel: Annotated[PositiveInt, Change.MACHINE] = 1
    """vLLM's --data-parallel-size: so many copies of the model behind one server that the run
    starts."""
    tensor_parallel: Annotated[PositiveInt, Change.MACHINE] = 1
    """vLLM's --tensor-parallel-size: a copy of the model is divided among so many GPUs."""

    def __post_init__(self) -> None:
        if not self.replicas and not self.urls:
            raise BadInput("engine.replicas: 0 needs an address in engine.urls: no engine is left")
        if self.port and self.port + self.replicas > _LAST_PORT + 1:
            raise BadInput(
                f"engine.port: {self.port} leaves no ports for {self.replicas} servers: the last "
                f"port is {_LAST_PORT}"
            )
        for url in self.urls:
            if not _is_address(url):
                shown = f"…@{url.rpartition('@')[2]}" if "@" in url else url  # not a password
                raise BadInput(
                    f"engine.urls: {shown!r} is not the address of a server, as in "
                    "'http://gpu-box:8000' (without /v1, and without a name or a key)"
                )
        if len(self.keys_from) > 1 and len(self.keys_from) != len(self.urls):
            raise BadInput(
                f"engine.keys_from: {len(self.keys_from)} entries for {len(self.urls)} addresses; "
                "give one for all, or one for each"
            )
        if self.shared_there and not self.shared:
            raise BadInput("engine.shared_there: it is the path of engine.shared, which is not set")

    @property
    def connections(self) -> int:
        """Requests that a server of the run gets at once: a quarter more than it decodes, so that
        the next is there when one ends."""
        return self.data_parallel * math.ceil(1.25 * self.max_num_seqs)

    @property
    def kv_cache_bytes(self) -> int:
        """Of one rank, on a CPU."""
        from fieldkit.gate.memory import GIB  # run.toml is read with every command

        return int(self.kv_cache_gib * GIB)

    @property
    def ranks(self) -> int:
        """Processes of one server that compute, each with weights and a KV cache."""
        return self.data_parallel * self.tensor_parallel


def _is_address(url: str) -> bool:
    """Whether it is a scheme, a host and perhaps a port, and nothing else."""
    return is_http(url) and not urlsplit(url).path.strip("/") and not set("?#@") & set(url)
