"""Several servers of one run have names of their own and divide the machine; one has all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, FieldkitError, Shortage, Unavailable
from fieldkit.gate import nvidia
from rollout.engine import vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.replica import ENGINE, Replica, is_engine
from rollout.engine.serve import _serve_all, _together
from rollout.engine.target import Target
from rollout.engine.vllm_server import (
    command,
    environment,
    require_servable,
)
from tests.conftest import TinyModel


def test_the_first_server_has_the_name_that_the_only_one_has() -> None:
    assert [Replica(i, 3).name for i in range(3)] == [ENGINE, "engine-2", "engine-3"]
    assert [Replica.named(f"engine{n}").index for n in ("", "-2", "-12")] == [0, 1, 11]
    assert [is_engine(n) for n in (ENGINE, "engine-2", "engine-x", "trainer", "engines")] == [
        *(True, True),
        *(False, False, False),
    ]
    with pytest.raises(ValueError, match="'trainer' is not the name"):
        Replica.named("trainer")


def test_the_only_server_is_told_and_noted_as_it_always_was() -> None:
    assert (Replica().told, Replica().note) == (ENGINE, {})
    assert (Replica(1, 2).told, Replica(1, 2).note) == ("engine 2", {"replica": [1, 2]})


@pytest.mark.parametrize(
    ("replica", "ranks", "cpus"),
    [
        (Replica(), 1, "0,1,2,3,4"),
        (Replica(0, 2), 1, "0,1"),
        (Replica(1, 2), 1, "2,3,4"),
        (Replica(0, 2), 2, "0|1"),
        (Replica(1, 2), 2, "2|3,4"),
        (Replica(2, 8), 1, "2"),
        (Replica(7, 8), 1, "2"),
    ],
)
def test_servers_and_their_ranks_divide_the_processors(
    replica: Replica, ranks: int, cpus: str
) -> None:
    assert replica.cpus(range(5), ranks) == cpus


def test_every_processor_is_used_once_where_there_are_enough() -> None:
    for of in range(1, 8):
        shares = ",".join(Replica(i, of).cpus(range(16), 2).replace("|", ",") for i in range(of))
        assert sorted(map(int, shares.split(","))) == list(range(16))


@pytest.mark.parametrize(
    ("of", "ranks", "gpus"),
    [
        (2, 1, ["a", "b"]),
        (4, 1, ["a", "b", "c", "d"]),
        (2, 2, ["a,b", "c,d"]),
        (6, 1, ["a", "b", "c", "d", "a", "b"]),
        (2, 4, ["a,b,c,d", "a,b,c,d"]),
    ],
)
def test_servers_get_gpus_of_their_own_where_there_are_enough(
    of: int, ranks: int, gpus: list[str]
) -> None:
    assert [Replica(i, of).gpus("abcd", ranks) for i in range(of)] == gpus


class Started:
    """A server that notes what is asked of it."""

    def __init__(
        self,
        name: str,
        asked: list[str],
        fails: str = "",
        kind: type[FieldkitError] = Unavailable,
    ) -> None:
        self.name, self.asked, self.fails, self.kind = name, asked, fails, kind

    def begin(self) -> None:
        self._note("begin")

    def finish(self) -> None:
        self._note("finish")

    def prove(self) -> Any:
        self._note("prove")
        return self.name

    def _note(self, what: str) -> None:
        self.asked.append(f"{what} {self.name}")
        if self.fails == what:
            raise self.kind(f"{self.name}: cannot {what}")


@pytest.mark.parametrize(
    ("one_by_one", "asked"),
    [
        (False, ["begin a", "begin b", "finish a", "finish b", "prove a", "prove b"]),
        (True, ["begin a", "finish a", "begin b", "finish b", "prove a", "prove b"]),
    ],
)
def test_servers_load_side_by_side_unless_they_share_a_gpu(
    one_by_one: bool, asked: list[str]
) -> None:
    found: list[str] = []
    servers = [Started(name, found) for name in "ab"]
    served: Any = _serve_all(servers, found.append, one_by_one=one_by_one)
    assert served == (["a", "b"], {})
    assert found == asked


@pytest.mark.parametrize(
    ("one_by_one", "before"),
    [(False, ["begin a", "begin b"]), (True, ["begin a"])],
)
def test_what_is_done_meanwhile_is_done_before_the_first_is_waited_for(
    one_by_one: bool, before: list[str]
) -> None:
    found: list[str] = []
    servers = [Started(name, found) for name in "ab"]
    _serve_all(servers, found.append, lambda: found.append("meanwhile"), one_by_one=one_by_one)
    assert found[: len(before) + 1] == [*before, "meanwhile"]


@pytest.mark.parametrize("kind", [Unavailable, Shortage])
@pytest.mark.parametrize("step", ["begin", "finish", "prove"])
def test_a_server_that_cannot_serve_or_lacks_memory_is_left_out_and_the_others_are_waited_for(
    step: str, kind: type[FieldkitError]
) -> None:
    said: list[str] = []
    servers = [Started(name, [], step if name != "c" else "", kind) for name in "abc"]
    both: Any = _serve_all(servers, said.append, one_by_one=False)
    served, failed = both
    assert served == ["c"]
    assert [str(failed[server]) for server in servers[:2]] == [f"{n}: cannot {step}" for n in "ab"]
    assert said == [f"engine: one server less, because {name}: cannot {step}" for name in "ab"]


def test_where_none_is_left_the_error_has_every_reason_and_is_a_shortage_if_one_is() -> None:
    one, other = Unavailable("a: ended"), Shortage("b: too little memory")
    assert _together([one]) is one
    both = _together([one, other])
    assert isinstance(both, Shortage)
    assert str(both) == "a: ended; b: too little memory"


def test_a_gpu_server_of_several_sees_its_own_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    seen = [environment(EngineSettings(), "key", tmp_path, Replica(i, 2)) for i in range(2)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == ["4", "5"]
    assert environment(EngineSettings(), "key", tmp_path)["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_no_sampler_is_compiled_that_no_request_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    env = environment(EngineSettings(), "key", tmp_path)
    assert env["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_vllms_own_parallelism_is_passed_through(tiny: TinyModel) -> None:
    one = command(tiny.folder, EngineSettings(one_process=False), None, {}, 1)
    two = command(tiny.folder, EngineSettings(data_parallel=2, tensor_parallel=4), None, {}, 1)
    assert not [word for word in one if "parallel" in word]
    assert two == [*one, "--data-parallel-size", "2", "--tensor-parallel-size", "4"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"replicas": 0}, "engine.replicas: 0 needs an address in engine.urls"),
        ({"port": 65_535, "replicas": 2}, "engine.port: 65535 leaves no ports for 2 servers"),
        ({"urls": ["gpu-box:8000"]}, "engine.urls: 'gpu-box:8000' is not the address"),
        ({"urls": ["http://gpu-box:8000/v1"]}, "is not the address of a server"),
        ({"urls": ["http://me:secret@gpu-box"]}, "'…@gpu-box' is not the address of a server"),
        ({"urls": ["http://:secret@gpu-box"]}, "'…@gpu-box' is not the address of a server"),
        ({"urls": ["http://gpu-box:8000?"]}, "is not the address of a server"),
        ({"urls": ["http://gpu-box:no"]}, "is not the address of a server"),
        ({"urls": ["http://a"], "keys_from": ["A", "B"]}, "engine.keys_from: 2 entries for 1"),
        ({"shared_there": "/there"}, "engine.shared_there: it is the path of engine.shared"),
    ],
)
def test_settings_that_leave_no_engine_or_no_way_to_one_are_refused(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        EngineSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tensor_parallel": 3}, r"tensor_parallel: 3 does not divide the 4 attention heads"),
        ({"threads_bind": "all"}, "threads_bind: 'all' is no list of processors, as in"),
        ({"threads_bind": "0,1", "data_parallel": 2}, r'of 2 processes, as in "0-3\|0-3"'),
    ],
)
def test_settings_with_which_no_server_of_the_model_starts_are_refused_before_any_start(
    tiny: TinyModel, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        require_servable(tiny.folder, EngineSettings(**settings))


def test_what_a_server_elsewhere_is_like_does_not_depend_on_this_machines_gpus(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    monkeypatch.setattr(nvidia, "visible_gpus", lambda: ["0"])
    settings = EngineSettings(tensor_parallel=2)
    with pytest.raises(BadInput, match="a server takes 2 GPUs and may use 1"):
        require_servable(tiny.folder, settings)
    assert Target(tiny.folder, settings, {}, "base").fingerprint()


def test_processors_that_a_person_chose_are_taken_as_vllm_takes_them(tiny: TinyModel) -> None:
    for bind in ("auto", "nobind", "0", "0-1,3", "0-1|2-3"):
        require_servable(tiny.folder, EngineSettings(threads_bind=bind))


def test_a_server_of_more_parts_than_gpus_is_refused_before_any_start(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(BadInput, match="a server takes 2 GPUs and may use 1"):
        require_servable(tiny.folder, EngineSettings(tensor_parallel=2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    require_servable(tiny.folder, EngineSettings(tensor_parallel=2))
