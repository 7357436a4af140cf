"""The engine: found again, swapped, restarted, cleaned up after, and never confused with another.

Tests marked `engine` drive one real vLLM with a tiny random model; the rest is about what is
decided and refused before a server is touched.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fieldkit.errors import BadInput, Shortage, Unavailable
from fieldkit.files.atomic import locked
from fieldkit.gate.memory import GIB
from fieldkit.process.owned import Owned, command_line, environment, family
from fieldkit.process.shared_memory import PLACE, shared_files
from fieldkit.records import Sampling
from fieldkit.training.adapter import CANARY_FILE, adapter_sha, read_adapter
from rollout.engine import serve, vllm_plugin
from rollout.engine.client import EngineClient
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.forecast import memory_needed
from rollout.engine.lifecycle import RESTART
from rollout.engine.port import HOST
from rollout.engine.proof import Verdict, prove
from rollout.engine.replica import ENGINE
from rollout.engine.serve import (
    ensure_engine,
    find_engine,
    release_memory,
    stop_engine,
)
from rollout.engine.server import url
from rollout.engine.target import Served, Target
from rollout.engine.vllm_server import (
    API_KEY_VARIABLE,
    BASE_NAME,
    LoraShape,
    command,
)
from rollout.engine.vllm_server import (
    environment as server_environment,
)
from scripts.doctor import ownership
from scripts.doctor.ownership import Use, families, told
from tests.conftest import ENGINE_SETTINGS, SharedEngine, TinyModel

PROMPT = (1, 4093, 198, 504, 2365, 6354, 16438, 28, 339, 5248, 253, 1838)
GREEDY = Sampling(temperature=0.0, max_tokens=4, top_p=1.0, top_k=0, min_p=0.0)


def logprobs(served: Served, ids: Sequence[int] = PROMPT) -> tuple[float, ...]:
    """The prompt's logprobs under what `served` names."""

    async def ask() -> tuple[float, ...]:
        async with EngineClient(served.base_url, served.api_key, served.model_name) as client:
            return await client.logprobs(ids)

    return asyncio.run(ask())


def served_names(served: Served) -> set[str]:
    import httpx

    headers = {"Authorization": f"Bearer {served.api_key}"}
    cards = httpx.get(f"{served.base_url}/v1/models", headers=headers).json()["data"]
    return {card["id"] for card in cards}


def torch_logprobs(
    model_dir: Path, adapter: Path, ids: Sequence[int], temperature: float = 1.0
) -> tuple[float, ...]:
    """Logprobs of ids[1:] by torch and peft in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(adapter)).eval()
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0, :-1].float() / temperature
    picked = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids[1:])[:, None])
    return tuple(picked[:, 0].tolist())


# -- one server --------------------------------------------------------------------------------


@pytest.mark.engine
def test_what_is_served_already_costs_nothing(engine: SharedEngine) -> None:
    first = engine.ensure(engine.model.adapter(1), "again-v1")
    again = engine.ensure(engine.model.adapter(1), "again-v1")
    assert again.pid == first.pid
    assert again.seconds < 5
    assert again.proof is None
    assert again.adapter_sha == adapter_sha(engine.model.adapter(1))


@pytest.mark.engine
def test_a_program_that_did_not_start_the_server_finds_it(engine: SharedEngine) -> None:
    served = engine.ensure(engine.model.adapter(1), "again-v1")
    script = (
        "import sys; from pathlib import Path; from rollout.engine.serve import find_engine\n"
        "print(find_engine(Path(sys.argv[1])).pid)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(engine.run_dir)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) == served.pid


@pytest.mark.engine
def test_a_swap_serves_the_new_adapter_and_drops_the_old_name(engine: SharedEngine) -> None:
    old = engine.ensure(engine.model.adapter(1), "swap-v1")
    old_logprobs = logprobs(old)
    new = engine.ensure(engine.model.adapter(2), "swap-v2")
    assert new.pid == old.pid
    assert served_names(new) == {BASE_NAME, "swap-v2"}
    assert max(abs(a - b) for a, b in zip(logprobs(new), old_logprobs, strict=True)) > 0.1


@pytest.mark.engine
def test_an_evaluations_arms_are_served_side_by_side(engine: SharedEngine) -> None:
    arms = {"arms-v0": engine.model.adapter(1), "arms-v9": engine.model.adapter(2)}
    each = [
        engine.ensure(None, keep=arms),
        *(engine.ensure(path, name, keep=arms) for name, path in arms.items()),
    ]
    assert len({s.pid for s in each}) == 1
    assert served_names(each[0]) == {BASE_NAME, *arms}
    assert each[0].model_name == BASE_NAME
    assert each[0].adapter_sha is None
    assert len({logprobs(s) for s in each}) == 3


@pytest.mark.engine
def test_prompt_logprobs_are_torchs_to_1e_5_in_float32(engine: SharedEngine) -> None:
    adapter = engine.model.adapter(2)
    mine = torch_logprobs(engine.model.folder, adapter, PROMPT)
    served = logprobs(engine.ensure(adapter, "exact-v2"))
    difference = sum(abs(a - b) for a, b in zip(served, mine, strict=True)) / len(mine)
    assert difference <= 1e-5


@pytest.mark.engine
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampled_logprobs_are_of_the_distribution_after_temperature(
    engine: SharedEngine, temperature: float
) -> None:
    adapter = engine.model.adapter(2)
    served = engine.ensure(adapter, "exact-v2")

    async def ask() -> Any:
        async with EngineClient(served.base_url, served.api_key, served.model_name) as client:
            sampling = Sampling(temperature, 12, 1.0, 0, 0.0)
            return await client.sample(PROMPT, sampling, seed=5)

    completion = asyncio.run(ask())
    whole = (*PROMPT, *completion.ids)
    mine = torch_logprobs(engine.model.folder, adapter, whole, temperature)[len(PROMPT) - 1 :]
    differences = [abs(a - b) for a, b in zip(completion.logprobs, mine, strict=True)]
    assert sum(differences) / len(differences) <= 1e-5


@pytest.fixture
def proven(engine: SharedEngine, tmp_path: Path) -> Path:
    """Adapter 3 with the canary that the trainer's side writes for it (its parent is adapter 1)."""
    from trainer.canary import prove_adapter

    folder = shutil.copytree(engine.model.adapter(3), tmp_path / "adapter")
    prove_adapter(
        folder,
        engine.model.folder,
        [PROMPT, PROMPT[::-1]],
        serving="float32",
        previous=engine.model.adapter(1),
    )
    return folder


@pytest.mark.engine
def test_an_adapter_with_its_trainers_canary_is_proven(engine: SharedEngine, proven: Path) -> None:
    served = engine.ensure(proven, "canary-v3")
    assert served.proof is not None
    assert served.proof.verdict is Verdict.PROVEN
    assert served.proof.mean_abs is not None
    assert served.proof.mean_abs <= 1e-5


@pytest.mark.engine
def test_another_adapter_under_the_proven_ones_name_is_found_out(
    engine: SharedEngine, proven: Path
) -> None:
    """The server is given adapter 1, and its answers are held against adapter 3's canary."""
    served = engine.ensure(engine.model.adapter(1), "wrong-v3")
    client = EngineClient(served.base_url, served.api_key, served.model_name)
    with pytest.raises(Unavailable, match="answers with the previous adapter"):
        prove(client, proven, adapter_sha(proven))


@pytest.mark.engine
def test_a_canary_of_other_weights_is_bad_input(engine: SharedEngine, proven: Path) -> None:
    value = json.loads((proven / CANARY_FILE).read_text())
    (proven / CANARY_FILE).write_text(json.dumps(value | {"adapter_sha": "0" * 64}))
    served = engine.ensure(engine.model.adapter(1), "wrong-v3")
    client = EngineClient(served.base_url, served.api_key, served.model_name)
    with pytest.raises(BadInput, match="written for adapter 000000000000"):
        prove(client, proven, adapter_sha(proven))


@pytest.mark.engine
def test_the_hotswapped_server_stays_while_the_trainer_works(engine: SharedEngine) -> None:
    served = engine.ensure(engine.model.adapter(1), "stays-v1")
    release_memory(engine.run_dir, engine.settings)
    assert engine.ensure(engine.model.adapter(1), "stays-v1").pid == served.pid


@pytest.mark.engine
def test_the_key_is_on_no_disk_and_the_marker_in_every_process(engine: SharedEngine) -> None:
    served = engine.ensure(engine.model.adapter(1), "stays-v1")
    owned = find_engine(engine.run_dir)
    assert owned is not None
    pids = family(owned.marker)
    assert served.pid in pids
    assert len(pids) == 2  # API server and engine core
    written = b"".join(p.read_bytes() for p in engine.run_dir.rglob("*") if p.is_file())
    assert served.api_key.encode() not in written
    assert environment(served.pid)[API_KEY_VARIABLE] == served.api_key


@pytest.mark.engine
def test_the_server_listens_on_loopback_alone_and_answers_nobody_without_the_runs_key(
    engine: SharedEngine,
) -> None:
    import httpx

    served = engine.ensure(engine.model.adapter(1), "stays-v1")
    owned = find_engine(engine.run_dir)
    assert owned is not None
    sockets = [s for pid in family(owned.marker) for s in psutil.Process(pid).net_connections()]
    listening = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
    asked = {"model": served.model_name, "prompt": list(PROMPT), "max_tokens": 1}
    for key in ({}, {"Authorization": "Bearer guessed"}):
        with httpx.Client(base_url=served.base_url, headers=key) as stranger:
            answers = [
                stranger.get("/v1/models"),
                stranger.post("/v1/completions", json=asked),
                stranger.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "/"}),
                stranger.post("/v1/unload_lora_adapter", json={"lora_name": served.model_name}),
                # vLLM itself leaves these open; the first of them gives completions.
                stranger.post("/invocations", json=asked),
                *(stranger.get(path) for path in ("/health", "/metrics", "/version", "/docs")),
            ]
        assert [a.status_code for a in answers] == [401] * 9


@pytest.mark.engine
def test_a_killed_servers_orphans_are_ended_before_the_next_start(engine: SharedEngine) -> None:
    killed = engine.ensure(engine.model.adapter(1), "killed-v1")
    owned = find_engine(engine.run_dir)
    assert owned is not None
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    served = engine.ensure(engine.model.adapter(1), "killed-v1")
    assert served.pid != killed.pid
    assert family(owned.marker) == []
    assert served_names(served) == {BASE_NAME, "killed-v1"}


@pytest.mark.engine
def test_what_computes_is_seen_where_it_is_left_alone_and_reclaimed_without_a_trace(
    engine: SharedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server is killed, as for memory. The other process is its fork and holds no port."""
    served = engine.ensure(engine.model.adapter(1), "reclaimed-v1")
    owned = find_engine(engine.run_dir)
    assert owned is not None
    shared = [PLACE / name for name in shared_files(family(owned.marker))]
    (worker,) = [p for p in family(owned.marker) if b"VLLM::EngineCore" in command_line(p)]
    assert served.pid is not None
    assert family(owned.marker) == sorted([served.pid, worker])
    psutil.Process(worker).suspend()  # or it would see its parent die and end itself
    killed = psutil.Process(served.pid)
    killed.kill()
    psutil.wait_procs([killed], timeout=30)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, owned.info["port"]))

    monkeypatch.setattr(ownership, "ROOT", engine.run_dir.parent)
    (left,) = [f for f in families() if f.marker == owned.marker]
    assert (left.pids, left.name, left.use) == ((worker,), ENGINE, Use.NOBODY)
    assert left.held > 2**20
    assert "does not answer, no loop uses it" in told(left)
    monkeypatch.setattr(ownership, "families", lambda: [left])
    (line,) = ownership.reclaim()
    assert line.startswith("ended engine of run")
    assert family(owned.marker) == []
    assert [path for path in shared if path.exists()] == []
    assert not Path(owned.info["scratch"]).exists()
    assert find_engine(engine.run_dir) is None


@pytest.mark.slow
@pytest.mark.engine
def test_a_server_that_is_killed_whole_leaves_no_shared_memory_after_the_next_stop(
    engine: SharedEngine,
) -> None:
    """vLLM's own processes share memory, which one alone does not."""
    engine.ensure(engine.model.adapter(1), "killed-v1", one_process=False)
    owned = find_engine(engine.run_dir)
    assert owned is not None
    shared = [PLACE / name for name in shared_files(family(owned.marker))]
    whole = [psutil.Process(p) for p in family(owned.marker)]
    for process in whole:
        process.suspend()
    for process in whole:
        process.kill()
    psutil.wait_procs(whole, timeout=30)
    assert [path for path in shared if path.exists()], "it was removed by somebody else"
    assert stop_engine(engine.run_dir, engine.settings) == 0
    assert [path for path in shared if path.exists()] == []
    assert not Path(owned.info["scratch"]).exists()


@pytest.mark.slow
@pytest.mark.engine
def test_an_adapter_that_is_not_the_proven_one_gets_one_fresh_server_and_then_exit_4(
    engine: SharedEngine, proven: Path, tmp_path: Path
) -> None:
    """Adapter 1 beside a canary that says its hash, with the logprobs of adapter 3."""
    wrong = shutil.copytree(engine.model.adapter(1), tmp_path / "wrong")
    canary = json.loads((proven / CANARY_FILE).read_text())
    (wrong / CANARY_FILE).write_text(json.dumps(canary | {"adapter_sha": adapter_sha(wrong)}))
    before = engine.ensure(engine.model.adapter(2), "before-v2")
    pids: list[int] = []

    def tell(line: str) -> None:
        owned = find_engine(engine.run_dir)
        if owned is not None and owned.pid is not None and "stopping" in line:
            pids.append(owned.pid)

    with pytest.raises(Unavailable, match="answers with the previous adapter") as failed:
        ensure_engine(engine.run_dir, engine.model.folder, engine.settings, wrong, "wrong-v9", tell)
    assert failed.value.exit_code == 4
    assert len(pids) == 2
    assert pids[0] == before.pid
    assert pids[1] != before.pid
    assert find_engine(engine.run_dir) is None


@pytest.mark.engine
def test_the_restart_lifecycle_serves_each_adapter_from_a_new_server(
    engine: SharedEngine,
) -> None:
    old = engine.ensure(engine.model.adapter(1), "restart-v1")
    old_logprobs = logprobs(old)
    owned = find_engine(engine.run_dir)
    assert owned is not None
    # Even under a name that was in use: a swap could answer from the old weights' cached prefixes.
    new = engine.ensure(engine.model.adapter(2), "restart-v1", lifecycle="restart")
    assert new.pid != old.pid
    assert new.lifecycle == RESTART.name
    assert family(owned.marker) == []
    assert logprobs(new) != old_logprobs

    release_memory(engine.run_dir, replace(engine.settings, lifecycle="restart"))
    assert find_engine(engine.run_dir) is None
    assert not Path(f"/proc/{new.pid}").exists()


@pytest.mark.engine
def test_a_server_that_cannot_start_says_why_and_leaves_nothing(
    tiny: TinyModel, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny.folder, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    run_dir = tmp_path / "run"
    with pytest.raises(Unavailable, match=r"did not start: the process ended.*NoSuchModel.*log/"):
        ensure_engine(run_dir, model, EngineSettings(), None, "", lambda line: None)
    assert find_engine(run_dir) is None
    assert json.loads((run_dir / "ledger.json").read_text())["processes"] == []


# -- before a server is touched ----------------------------------------------------------------


@pytest.mark.scale
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("parallel", [{"data_parallel": 2}, {"tensor_parallel": 2}])
def test_an_adapter_is_swapped_and_proven_on_every_rank_of_a_parallel_server(
    tiny: TinyModel, tmp_path: Path, parallel: dict[str, Any]
) -> None:
    from trainer.canary import prove_adapter

    run_dir = tmp_path / "run"
    settings = replace(ENGINE_SETTINGS, kv_cache_gib=0.1, **parallel)
    try:
        for n in (1, 2):
            adapter = shutil.copytree(tiny.adapter(n), tmp_path / f"adapter-{n}")
            # Several sequences, so that the requests reach every rank.
            ids = [tuple(range(first, first + 30)) for first in range(20, 500, 60)]
            prove_adapter(adapter, tiny.folder, ids, serving="float32")
            (served,) = ensure_engine(
                run_dir, tiny.folder, settings, adapter, f"run-v{n}", lambda line: None
            )
            assert served.proof is not None
            assert served.proof.verdict is Verdict.PROVEN
        owned = find_engine(run_dir)
        assert owned is not None
        workers = [pid for pid in family(owned.marker) if b"VLLM::Worker" in command_line(pid)]
        assert len(workers) == 2
    finally:
        stop_engine(run_dir, settings)
    assert family(owned.marker) == []


def ensure(tiny: TinyModel, run_dir: Path, adapter: Path | None = None, **changes: Any) -> Served:
    settings = replace(EngineSettings(), **changes)
    (served,) = ensure_engine(run_dir, tiny.folder, settings, adapter, "run-v1", lambda line: None)
    return served


def test_an_end_does_not_wait_for_ever_for_a_program_that_hangs_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_END_SECONDS", 0.3)
    monkeypatch.setattr(serve, "_SILENT_SECONDS", 0.1)
    said: list[str] = []
    settings = replace(ENGINE_SETTINGS, stop_seconds=0.0)
    with (
        locked(tmp_path / "engine.lock"),
        pytest.raises(Unavailable, match=r"engine\.lock: another program .*`fuser "),
    ):
        stop_engine(tmp_path, settings, said.append)
    assert said == ["waiting for another program that starts or ends this run's server"]


def test_a_missing_model_folder_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no model there; `grpo model`"):
        ensure_engine(tmp_path / "run", tmp_path, EngineSettings(), None, "", lambda line: None)
    assert not (tmp_path / "run").exists()


def test_a_poisoned_adapter_is_refused_before_anything_is_touched(
    tiny: TinyModel, tmp_path: Path
) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    adapter = shutil.copytree(tiny.adapter(1), tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    name = sorted(tensors)[0]
    tensors[name][0, 0] = np.nan
    save_file(tensors, file)
    with pytest.raises(BadInput, match=f"{name} holds 1 NaN"):
        ensure(tiny, tmp_path / "run", adapter)
    assert not (tmp_path / "run").exists()


def test_a_busy_port_is_named_with_who_holds_it(tiny: TinyModel, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port} .*held by pid {os.getpid()}"):
            ensure(tiny, tmp_path / "run", port=port)
    assert find_engine(tmp_path / "run") is None


def test_too_little_memory_is_a_shortage_and_starts_nothing(
    tiny: TinyModel, tmp_path: Path
) -> None:
    with pytest.raises(Shortage, match=r"starting the engine: .*largest holders"):
        ensure(tiny, tmp_path / "run", kv_cache_gib=1e6, memory_seconds=0.0)
    assert find_engine(tmp_path / "run") is None


def test_stopping_without_a_server_does_nothing(tmp_path: Path) -> None:
    stop_engine(tmp_path / "run")
    release_memory(tmp_path / "run", EngineSettings())
    assert find_engine(tmp_path / "run") is None


def test_a_server_is_started_for_the_rank_and_layers_of_its_adapters(
    tiny: TinyModel, tmp_path: Path
) -> None:
    info = read_adapter(tiny.adapter(1))
    shape = LoraShape.of([replace(info, rank=12), replace(info, target_modules=("o_proj",))])
    assert shape == LoraShape(16, ("o_proj", "q_proj", "v_proj"))
    words = command(tiny.folder, EngineSettings(), shape, {"run-v1": tmp_path}, port=1)
    line = " ".join(words)
    assert "--max-lora-rank 16" in line
    assert "--lora-target-modules o_proj q_proj v_proj" in line
    assert f"--lora-modules run-v1={tmp_path}" in line
    comma = command(tiny.folder, EngineSettings(), shape, {"run-v1": Path("/a, b")}, port=1)
    assert json.loads(comma[-1]) == {"name": "run-v1", "path": "/a, b"}


def test_a_rank_beyond_what_the_server_can_serve_is_bad_input(tiny: TinyModel) -> None:
    with pytest.raises(BadInput, match="rank 600: vLLM serves at most 512"):
        LoraShape.of([replace(read_adapter(tiny.adapter(1)), rank=600)])


def test_the_server_samples_from_the_distribution_that_it_reports(tiny: TinyModel) -> None:
    words = command(tiny.folder, EngineSettings(), None, {}, port=1)
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert words[words.index("--generation-config") + 1] == "vllm"


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        ({}, True),
        ({"one_process": False}, False),
        ({"replicas": 2}, False),
        ({"data_parallel": 2}, False),
        ({"threads_bind": "0"}, False),
    ],
)
def test_a_server_that_is_alone_computes_in_its_scheduler(
    tiny: TinyModel,
    change: dict[str, Any],
    alone: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    settings = replace(EngineSettings(), **change)
    words = command(tiny.folder, settings, None, {}, port=1)
    env = server_environment(settings, "key", tmp_path)
    assert ("--distributed-executor-backend" in words) is alone
    assert ("VLLM_CPU_OMP_THREADS_BIND" not in env) is alone
    if alone:
        assert env["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
        saved = memory_needed(tiny.folder, replace(settings, one_process=False))
        assert memory_needed(tiny.folder, settings) == saved - GIB // 2
        monkeypatch.setattr(vllm_plugin, "KNOWN_VERSIONS", frozenset())
        assert command(tiny.folder, settings, None, {}, port=1) != words, "an unknown vLLM's way"


@pytest.mark.parametrize(
    "change",
    [
        *({"max_adapters": 9}, {"cpu_patches": False}, {"tcmalloc": False}, {"threads_bind": "0"}),
        {"one_process": False},
        *({"kv_cache_gib": 2.0}, {"max_num_seqs": 9}, {"tensor_parallel": 2}),
    ],
)
def test_a_server_of_other_settings_is_not_taken_for_this_one(
    tiny: TinyModel, change: dict[str, Any]
) -> None:
    one, other = EngineSettings(), replace(EngineSettings(), **change)
    prints = {Target(tiny.folder, s, {}, BASE_NAME).fingerprint() for s in (one, one, other)}
    assert len(prints) == 2


def test_an_address_with_colons_is_in_brackets() -> None:
    at = [Owned("engine", "m", info={"host": host, "port": 80}) for host in ("fd00::5", "10.0.0.5")]
    assert [url(owned) for owned in at] == ["http://[fd00::5]:80", "http://10.0.0.5:80"]


def test_socket_paths_in_the_scratch_folder_stay_below_the_kernels_limit(tmp_path: Path) -> None:
    env = server_environment(EngineSettings(), "key", Path("/tmp/grpo-12345678"))
    longest = f"{env['VLLM_RPC_BASE_PATH']}/{'u' * 36}"  # vLLM names its sockets by a UUID
    assert len(longest) < 107


def test_the_persons_secrets_are_not_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "db_password", "GIT_TOKEN_2")
    of_an_outside_server = "GPU_BOX"
    others = ("TOKENIZERS_PARALLELISM", "KEYBOARD", "PASSAGE", "LD_LIBRARY_PATH")
    for name in (*secrets, of_an_outside_server, *others):
        monkeypatch.setenv(name, "x")
    settings = EngineSettings(keys_from=[of_an_outside_server])
    env = server_environment(settings, "key", Path("/tmp/grpo-12345678"))
    assert not env.keys() & {*secrets, of_an_outside_server}
    assert env.keys() >= set(others)
    assert env["VLLM_API_KEY"] == "key"
