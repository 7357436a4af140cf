"""A person's own server is given adapters and proven; it is never started, ended or trusted."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Interrupted, Unavailable
from fieldkit.training.adapter import adapter_sha
from rollout.engine import outside
from rollout.engine.admin import Admin
from rollout.engine.client import EngineClient
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.outside import OWNER_FILE, look_at
from rollout.engine.port import HOST, free_port
from rollout.engine.proof import Verdict
from rollout.engine.serve import ensure_engine, find_servers, stop_engine
from rollout.engine.target import Served
from tests.conftest import SharedEngine
from tests.fieldkit.answering import answering, said
from tests.rollout.engine.strangers import KEY, Proxy, Stranger, stranger
from tests.tiny_model import make_adapter

Policy = tuple[Path, Path]
KEY_NAME = "GRPO_TEST_STRANGERS_KEY"


@pytest.fixture(scope="module")
def theirs(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    with stranger(policy[0], tmp_path_factory.mktemp("theirs") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def proven(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter with a canary."""
    from trainer.canary import prove_adapter

    folder = shutil.copytree(policy[1], tmp_path_factory.mktemp("proven") / "adapter")
    prove_adapter(
        folder, policy[0], [tuple(range(20, 60)), tuple(range(300, 340))], serving="float32"
    )
    return folder


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, theirs: Stranger) -> EngineSettings:
    monkeypatch.setenv(KEY_NAME, KEY)
    monkeypatch.setattr(outside, "_ALONE_SECONDS", 0.0)
    return EngineSettings(
        replicas=0, urls=[theirs.url], keys_from=[KEY_NAME], dtype="float32", max_model_len=512
    )


class Run:
    """A run that has no server of its own."""

    def __init__(self, folder: Path, model: Path, settings: EngineSettings) -> None:
        self.folder, self.model, self.settings = folder, model, settings
        self.said: list[str] = []

    def ensure(self, adapter: Path | None, version: str, **changes: Any) -> Served:
        settings = replace(self.settings, **changes)
        (served,) = ensure_engine(
            self.folder, self.model, settings, adapter, version, self.said.append
        )
        return served


@pytest.fixture
def run(tmp_path: Path, policy: Policy, settings: EngineSettings) -> Run:
    return Run(tmp_path / "run", policy[0], settings)


def test_it_is_given_an_adapter_under_a_name_with_its_hash_and_proves_it(
    run: Run, theirs: Stranger, proven: Path
) -> None:
    served = run.ensure(proven, "run-v1")
    assert served.model_name.startswith(f"run-v1-{adapter_sha(proven)[:12]}-")
    assert served.model_name in theirs.names()
    assert (served.version, served.pid, served.api_key) == ("run-v1", None, KEY)
    assert served.proof is not None
    assert served.proof.verdict in (Verdict.PROVEN, Verdict.INDISTINGUISHABLE)
    again = run.ensure(proven, "run-v1")
    assert again.proof is not None, "somebody may have restarted it since"
    assert sum("loading" in line for line in run.said) == 1


def test_other_weights_under_the_same_version_have_another_name(
    run: Run, policy: Policy, tmp_path: Path
) -> None:
    other = make_adapter(tmp_path / "other", policy[0], seed=5, scale=0.02)
    names = {run.ensure(adapter, "run-v1").model_name for adapter in (policy[1], other)}
    assert len(names) == 2


def test_another_adapter_where_the_proven_one_should_be_is_found_out(
    run: Run, theirs: Stranger, proven: Path, policy: Policy, tmp_path: Path
) -> None:
    """Somebody has loaded other weights under the name that this run would give."""
    name = run.ensure(proven, "run-v1").model_name
    wrong = make_adapter(tmp_path / "wrong", policy[0], seed=7, scale=0.4)
    with Admin(theirs.url, KEY) as admin:
        admin.unload(name)
        admin.load(name, wrong)
    with pytest.raises(Unavailable, match=r"logprobs are not the adapter's|answers with"):
        run.ensure(proven, "run-v1")


def test_it_gets_adapters_from_a_shared_folder_and_only_its_own_are_removed(
    run: Run, theirs: Stranger, policy: Policy, tmp_path: Path
) -> None:
    shared, there = tmp_path / "shared", tmp_path / "there"
    shared.mkdir()
    there.symlink_to(shared)
    (shared / "somebody-elses").mkdir()
    with Admin(theirs.url, KEY) as admin:
        admin.load("somebody-elses", policy[1])
    ways = {"shared": str(shared), "shared_there": str(there)}
    first = run.ensure(policy[1], "run-v1", **ways).model_name
    assert adapter_sha(shared / first) == adapter_sha(policy[1])
    other = make_adapter(tmp_path / "other", policy[0], seed=5, scale=0.02)
    second = run.ensure(other, "run-v2", **ways).model_name
    assert {"somebody-elses", second} <= theirs.names()
    assert first not in theirs.names()
    assert sorted(p.name for p in shared.iterdir()) == sorted(["somebody-elses", second])


@pytest.mark.parametrize("torn", [False, True], ids=["missing", "torn"])
def test_a_copy_in_the_shared_folder_whose_weights_are_not_whole_is_replaced(
    run: Run, policy: Policy, tmp_path: Path, torn: bool
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    name = run.ensure(policy[1], "run-v1", shared=str(shared)).model_name
    weights = shared / name / "adapter_model.safetensors"
    if torn:
        weights.write_bytes(weights.read_bytes()[:-8])
    else:
        weights.unlink()
    run.ensure(policy[1], "run-v1", shared=str(shared))
    assert adapter_sha(shared / name) == adapter_sha(policy[1])


def test_what_it_was_given_is_taken_back_when_the_run_s_engine_ends(
    run: Run, theirs: Stranger, policy: Policy, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "somebody-elses").mkdir()
    before = theirs.names()
    name = run.ensure(policy[1], "run-v1", shared=str(shared)).model_name
    assert theirs.names() - before == {name}
    stop_engine(run.folder, replace(run.settings, shared=str(shared)), run.said.append)
    assert theirs.names() == before
    assert [copy.name for copy in shared.iterdir()] == ["somebody-elses"]
    assert f"engine {theirs.url}: unloading adapter {name}" in run.said


def test_one_that_cannot_be_asked_keeps_it_and_the_end_of_the_run_says_so(
    run: Run, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.ensure(policy[1], "run-v1")
    gone = replace(run.settings, urls=[f"http://{HOST}:{free_port(0)}"])
    assert stop_engine(run.folder, gone, run.said.append) == 0
    assert f"{gone.urls[0]}: it keeps the run's adapters: " in run.said[-1]
    monkeypatch.delenv(KEY_NAME)
    assert stop_engine(run.folder, gone, run.said.append) == 0
    assert "keep the run's adapters: engine.keys_from: the environment has no" in run.said[-1]


def test_it_outlives_the_run(run: Run, theirs: Stranger, policy: Policy) -> None:
    run.ensure(policy[1], "run-v1")
    assert find_servers(run.folder) == ()
    assert stop_engine(run.folder, run.settings) == 0
    assert theirs.process.poll() is None
    assert "theirs" in theirs.names()


def test_the_base_model_has_the_name_that_it_has_there(run: Run) -> None:
    served = run.ensure(None, "base")
    assert (served.model_name, served.version, served.adapter_sha) == ("theirs", "base", None)


def test_its_key_is_on_no_disk(run: Run, policy: Policy) -> None:
    run.ensure(policy[1], "run-v1")
    written = b"".join(p.read_bytes() for p in run.folder.rglob("*") if p.is_file())
    assert KEY.encode() not in written


@pytest.mark.engine
def test_a_real_vllm_is_given_an_adapter_and_proven(
    engine: SharedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's server, in the part of a person's own: this run knows its address and key."""
    from trainer.canary import prove_adapter

    theirs = engine.ensure(engine.model.adapter(1), "owner-v1")
    adapter = shutil.copytree(engine.model.adapter(2), tmp_path / "adapter")
    ids = [tuple(range(20, 60)), tuple(range(300, 340))]
    prove_adapter(adapter, engine.model.folder, ids, serving="float32")
    (tmp_path / "key").write_text(theirs.api_key)
    (tmp_path / "shared").mkdir()
    settings = EngineSettings(
        replicas=0,
        urls=[theirs.base_url],
        keys_from=[str(tmp_path / "key")],
        shared=str(tmp_path / "shared"),
        dtype="float32",
    )
    run = Run(tmp_path / "run", engine.model.folder, settings)
    served = run.ensure(adapter, "guest-v1")
    assert served.proof is not None
    assert served.proof.verdict is Verdict.PROVEN
    assert served.proof.mean_abs is not None
    assert served.proof.mean_abs <= 1e-5
    stop_engine(run.folder, settings)
    with Admin(theirs.base_url, theirs.api_key) as admin:
        names = set(admin.models() or {})
    assert "owner-v1" in names
    assert served.model_name not in names
    with pytest.raises(Unavailable, match=r"has to see /not/there/.*--max-lora-rank"):
        run.ensure(engine.model.adapter(3), "guest-v2", shared_there="/not/there")


# -- what is wrong with it -------------------------------------------------------------------------


def test_a_server_that_reports_logprobs_before_temperature_is_refused(
    policy: Policy, tmp_path: Path, settings: EngineSettings
) -> None:
    with stranger(policy[0], tmp_path / "log", processed=False) as raw:
        run = Run(tmp_path / "run", policy[0], replace(settings, urls=[raw.url]))
        with pytest.raises(Unavailable, match="--logprobs-mode processed_logprobs"):
            run.ensure(policy[1], "run-v1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_model_len": 1024}, "its context is 512 tokens and engine.max_model_len is 1024"),
        (
            {"keys_from": []},
            "HTTP 401.*engine.keys_from says where its key is: nowhere; `curl http",
        ),
        ({"urls": [f"http://{HOST}:{free_port(0)}"]}, "ConnectError.*`curl .*http"),
    ],
)
def test_a_server_that_cannot_play_says_why(
    run: Run, policy: Policy, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(Unavailable, match=says):
        run.ensure(policy[1], "run-v1", **changes)


def test_a_path_that_it_does_not_see_is_named_with_the_setting(
    run: Run, policy: Policy, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with pytest.raises(Unavailable, match=r"has to see /not/there/run-v1-.*engine.shared"):
        run.ensure(policy[1], "run-v1", shared=str(shared), shared_there="/not/there")


def test_a_shared_folder_that_is_gone_leaves_out_its_server_as_others_may_play(
    run: Run, policy: Policy
) -> None:
    with pytest.raises(Unavailable, match=r"engine.shared: /not/there: No such file.*its adapters"):
        run.ensure(policy[1], "run-v1", shared="/not/there")


def test_a_person_hears_that_it_does_not_answer_and_can_end_the_wait(
    run: Run, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(line: str) -> None:
        raise Interrupted(line)

    monkeypatch.setattr(outside, "_ALONE_SECONDS", 600.0)
    monkeypatch.setattr(outside, "_PROGRESS_SECONDS", 0.0)
    url = f"http://{HOST}:{free_port(0)}"
    settings = replace(run.settings, urls=[url])
    with pytest.raises(Interrupted, match=f"engine {url}: waiting for an answer, 0 s"):
        ensure_engine(run.folder, run.model, settings, policy[1], "run-v1", interrupt)


def test_several_that_are_away_are_waited_for_as_one_and_the_one_that_comes_back_plays(
    run: Run, theirs: Stranger, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_ALONE_SECONDS", 600.0)
    monkeypatch.setattr(outside, "_BESIDE_OTHERS_SECONDS", 0.0)
    monkeypatch.setattr(outside, "_PROGRESS_SECONDS", 0.0)
    proxy = Proxy(int(theirs.url.rpartition(":")[2]))
    proxy.cut()
    mended: list[str] = []

    def mend(line: str) -> None:
        if "waiting for an answer" in line and not mended:
            mended.append(line)
            proxy.mend()

    settings = replace(run.settings, urls=[f"http://{HOST}:{free_port(0)}", proxy.url])
    try:
        (served,) = ensure_engine(run.folder, run.model, settings, policy[1], "run-v1", mend)
    finally:
        proxy.close()
    assert served.base_url == proxy.url
    assert mended == ["engine: waiting for an answer, 0 s, and no server is left"]


def test_several_that_stay_away_are_told_with_the_reason_of_each(
    run: Run, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_BESIDE_OTHERS_SECONDS", 0.0)
    gone = [f"http://{HOST}:{free_port(0)}" for _ in range(2)]
    with pytest.raises(Unavailable) as failed:
        run.ensure(policy[1], "run-v1", urls=gone)
    for url in gone:
        assert str(failed.value).count(f"{url}: ConnectError") == 1


def test_a_key_that_is_not_its_own_is_told_at_once_with_a_command_that_sends_it(
    run: Run, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_wait(line: str) -> None:
        raise AssertionError(line)

    monkeypatch.setattr(outside, "_ALONE_SECONDS", 600.0)
    monkeypatch.setattr(outside, "_PROGRESS_SECONDS", 0.0)
    monkeypatch.setenv(KEY_NAME, "another")
    sends = rf"where its key is: {KEY_NAME}; `curl -H \"Authorization: Bearer \${KEY_NAME}\" http"
    with pytest.raises(Unavailable, match=sends):
        ensure_engine(run.folder, run.model, run.settings, policy[1], "run-v1", no_wait)


@pytest.mark.parametrize("data", ["[{}]", '["x"]', '[{"id": "a"}, null]', "5"])
def test_a_server_that_lists_no_models_is_no_vllm(data: str) -> None:
    with answering([said("")], listed=f'{{"data": {data}}}') as endpoint:
        url = endpoint.base_url.removesuffix("/v1")
        with pytest.raises(Unavailable, match=rf"^{url}/v1/models: .*no list of models"):
            look_at(EngineSettings(replicas=0, urls=[url]))


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server that answers over TLS, and the certificate of its own authority."""
    key, authority = tmp_path / "key.pem", tmp_path / "authority.pem"
    words = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=own"
    words += f" -addext subjectAltName=DNS:localhost -keyout {key} -out {authority}"
    subprocess.run(words.split(), check=True, capture_output=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"data": [{"id": "theirs", "max_model_len": 4096}]})

        def do_POST(self) -> None:
            self._answer({"choices": [{"prompt_logprobs": [None, {"2": {"logprob": -1.0}}]}]})

        def _answer(self, value: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *words: Any) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, key)
    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}", authority
        server.shutdown()


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes its key")


@needs_openssl
def test_an_authority_of_the_persons_own_is_named_by_the_usual_variable(
    tls: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, authority = tls
    settings = EngineSettings(replicas=0, urls=[url])
    with pytest.raises(Unavailable, match=r"CERTIFICATE_VERIFY_FAILED.*SSL_CERT_FILE names"):
        look_at(settings)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert look_at(settings) == [f"{url} serves theirs"]

    async def ask() -> tuple[float, ...]:
        async with EngineClient(url, "", "theirs") as client:
            return await client.logprobs((1, 2))

    assert asyncio.run(ask()) == (-1.0,)


def test_a_file_of_authorities_that_is_not_there_is_bad_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    with pytest.raises(BadInput, match=r"SSL_CERT_FILE: /no/such\.pem: No such file"):
        look_at(EngineSettings(replicas=0, urls=["https://gpu-box"]))


# -- before it begins ------------------------------------------------------------------------------


def test_every_address_is_asked_before_anything_is_started(
    settings: EngineSettings, theirs: Stranger
) -> None:
    assert look_at(settings) == [f"{theirs.url} serves theirs"]
    gone = replace(settings, urls=[theirs.url, f"http://{HOST}:{free_port(0)}"])
    with pytest.raises(Unavailable, match="ConnectError"):
        look_at(gone)
    assert look_at(EngineSettings()) == []


def test_all_that_is_wrong_in_the_evening_is_told_at_once(
    settings: EngineSettings, tmp_path: Path
) -> None:
    gone = [f"http://{HOST}:{free_port(0)}/" for _ in range(2)]
    with pytest.raises(Unavailable) as refused:
        look_at(replace(settings, urls=gone, shared=str(tmp_path / "unmounted")))
    for url in gone:
        assert f" {url}v1/models`" in str(refused.value), "not with two slashes"
    assert f"engine.shared: {tmp_path / 'unmounted'}: No such file" in str(refused.value)


@pytest.mark.parametrize("key", ["shared", "shared_there"])
def test_a_shared_path_that_the_server_would_read_as_another_is_refused(
    settings: EngineSettings, tmp_path: Path, key: str
) -> None:
    paths: dict[str, Any] = {"shared": str(tmp_path), key: "adapters"}
    with pytest.raises(BadInput, match=rf"engine\.{key}: adapters is no absolute path"):
        look_at(replace(settings, **paths))


def test_a_shared_folder_may_be_named_by_the_home_folder(
    run: Run, theirs: Stranger, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adapters").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    name = run.ensure(policy[1], "run-v1", shared="~/adapters").model_name
    assert name in theirs.names()
    assert adapter_sha(tmp_path / "adapters" / name) == adapter_sha(policy[1])


def test_two_runs_never_give_the_same_name(
    tmp_path: Path, policy: Policy, settings: EngineSettings
) -> None:
    names = {
        Run(tmp_path / folder / "run", policy[0], settings).ensure(policy[1], "run-v1").model_name
        for folder in ("one", "two")
    }
    assert len(names) == 2


def test_a_run_of_another_machine_gives_other_names_under_the_same_path(
    run: Run, policy: Policy
) -> None:
    name = run.ensure(policy[1], "run-v1").model_name
    (run.folder / OWNER_FILE).unlink()  # its folder is another one
    assert run.ensure(policy[1], "run-v1").model_name != name
