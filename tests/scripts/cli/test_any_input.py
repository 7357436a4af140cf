"""Whatever is in a name, a setting, a task file or a record: success, or one line that helps.

Hypothesis writes the input, and the commands run in this process. An exception that is no exit
fails the test, so does a message that names neither file, line nor key, or no next command.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from rollout.tasks import read_tasks, signatures
from scripts.base.checkout import ROOT
from scripts.run import folder as run_folder
from scripts.run.folder import RunFolder
from scripts.run.keys import all_keys
from tests.scripts.cli.in_process import grpo, helps
from tests.scripts.made_night import make_night
from tests.tiny_policy import tiny_task

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,  # a suite that fails by chance stops somebody else's work
    suppress_health_check=list(HealthCheck),
)


# -- names -----------------------------------------------------------------------------------------

ODD_NAMES = ("", ".", "..", "a b", "x" * 300, "\0", "\udce9", "é", "a\nb", "a'b", "-x", "$HOME")
names = st.one_of(
    st.sampled_from(ODD_NAMES),
    st.text(max_size=12),
    st.lists(st.sampled_from((*ODD_NAMES, "a", "~", "~nobody-here", "run.toml")), min_size=1).map(
        "/".join
    ),
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout in which anything may be written."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "runs").mkdir()
    with patch.object(run_folder, "ROOT", root):
        yield root


@QUICK
@given(name=names)
@pytest.mark.parametrize("command", ["new", "next"])
def test_any_run_name(checkout: Path, command: str, name: str) -> None:
    before = {path for path in checkout.iterdir() if path.name != "runs"}
    place = name if "/" not in name else f"{checkout}/runs/./{name}"
    if "/.." in place:  # these are tried below, where nothing can be written
        command = "next"
    helps(grpo(command, "--", place), "run", "RUN")
    assert {path for path in checkout.iterdir() if path.name != "runs"} == before


@pytest.mark.parametrize("name", ["..", "./..", "{runs}/..", "{runs}/../..", "/"])
def test_new_writes_nothing_into_the_checkout_or_above_it(checkout: Path, name: str) -> None:
    typed = name.format(runs=checkout / "runs")
    with contextlib.chdir(checkout):
        ended = grpo("new", typed)
    assert ended.code == BadInput.exit_code
    helps(ended, "RUN")
    assert not (checkout / "run.toml").exists()


def test_new_on_a_file_or_a_folder_of_something_else_leaves_it_alone(checkout: Path) -> None:
    (checkout / "file").write_text("mine")
    (checkout / "folder").mkdir(exist_ok=True)
    (checkout / "folder" / "mine").touch()
    for name in ("file", "folder", "file/run"):
        ended = grpo("new", checkout / name)
        assert ended.code == BadInput.exit_code
        helps(ended, str(checkout / name))
    assert (checkout / "file").read_text() == "mine"
    assert [p.name for p in (checkout / "folder").iterdir()] == ["mine"]


# -- settings --------------------------------------------------------------------------------------

VALUES = (
    *("nan", "inf", "-inf", "0", "-1", "0.5", "50", "1e308", "5" * 5000, "0x" + "f" * 5000),
    *('""', '"auto"', '"none"', '"/nowhere"', '"\\u0000"', '"..é/"', "true", "1979-05-27"),
    *("[]", "{}", "[[[1]]]", "[" * 100_000, "{a=" * 5000, "=", '"', "\0"),
)
keys = st.one_of(
    st.sampled_from([(key.table, key.name) for key in all_keys()]),
    st.sampled_from([("rollout", "temprature"), ("roll", "x"), ("é", '"a b"'), ("run", "")]),
)


@QUICK
@given(given_keys=st.lists(st.tuples(keys, st.sampled_from(VALUES)), max_size=3, unique_by=str))
def test_any_settings(checkout: Path, given_keys: list[tuple[tuple[str, str], str]]) -> None:
    run = checkout / "runs" / "set"
    run.mkdir(exist_ok=True)
    text = "".join(f"[{table}]\n{key} = {value}\n" for (table, key), value in given_keys)
    (run / "run.toml").write_text(text)
    for command in (("next", "set"), ("reward", "explain", "set")):
        helps(grpo(*command), "run.toml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout.temperature", "50.0"),
        ("rollout.temperature", "nan"),
        ("eval.temperature", "inf"),
        ("run.minutes", "1e308"),
        ("run.steps", "0x" + "f" * 5000),
        ("rollout.group_size", "1000000000"),
    ],
)
def test_a_setting_beyond_reason_is_refused_by_its_key(
    checkout: Path, key: str, value: str
) -> None:
    run = checkout / "runs" / "beyond"
    run.mkdir(exist_ok=True)
    table, name = key.split(".")
    (run / "run.toml").write_text(f"[{table}]\n{name} = {value}\n")
    ended = grpo("next", "beyond")
    assert ended.code == BadInput.exit_code
    helps(ended, key)
    assert "run.toml" in ended.error


def test_half_a_character_in_a_typed_word_or_a_row_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "say \\ud83d"}\n')
    sound = f"{ROOT}/tests/scripts/environments/faulty.py:Sound"
    from_rows = ("env", "tasks", sound, "--from", tmp_path / "rows.jsonl", "--out", tmp_path / "o")
    for words in (("new", tmp_path / "night", "--set", "model.path=caf\udce9"), from_rows):
        ended = grpo(*words)
        assert ended.code == BadInput.exit_code
        helps(ended, "caf\\udce9' ends with half of", "say \\ud83d' ends with half of")
    assert not list(tmp_path.rglob("*.toml"))
    assert not (tmp_path / "o").exists()


# -- records ---------------------------------------------------------------------------------------

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0.5, 10**30, float("nan"), float("inf"), "", "\ud800", "\0", "x" * 5000),
    *(
        "../../x",
        "/etc/passwd",
        "a/b",
        "a\nb",
        [],
        {},
        [None],
        {"": None},
        json.loads("[" * 90 + "]" * 90),
    ),
)
LINES = (
    *(b"", b"\n", b"{", b"null\n", b"[]\n", b"\xff\xfe\n", b'{"schema": 1}\n', b'{"schema": 2}\n'),
    *(b"[" * 100_000 + b"\n", b'{"a":' * 100_000 + b"\n", b"9" * 5000 + b"\n"),
    *(b'{"schema": 1, "step": ' + b"9" * 5000 + b"}\n", b"\xef\xbb\xbf{}\n", b"NaN\n"),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a JSON value something can stand."""
    yield path
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            yield from places(one, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at that place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new) if path[1:] else new
    return copy


def without(value: Any, path: tuple[Any, ...]) -> Any:
    """The value without what stands at that place."""
    *above, last = path
    inner = value
    for key in above:
        inner = inner[key]
    copy = dict(inner) if isinstance(inner, dict) else list(inner)
    del copy[last]
    return put(value, tuple(above), copy)


def mutants(text: str) -> st.SearchStrategy[bytes]:
    """The file with one line of another kind, or with one value of its first line exchanged, taken
    out, or put where nothing was."""
    first, *rest = text.splitlines(keepends=True)
    if first.strip() == "{":  # one indented value
        first, rest = text, []
    value = json.loads(first)
    after = "".join(rest).encode()

    def exchanged(place: tuple[Any, ...], new: Any) -> bytes:
        return json.dumps(put(value, place, new)).encode() + b"\n" + after

    def shorter(place: tuple[Any, ...]) -> bytes:
        return json.dumps(without(value, place)).encode() + b"\n" + after

    all_places = list(places(value))
    here = st.sampled_from(all_places)
    below = st.sampled_from([place for place in all_places if place])
    unknown = below.map(
        lambda place: (*place[:-1], "unknown") if isinstance(place[-1], str) else place
    )
    return st.one_of(
        st.builds(exchanged, st.one_of(here, here, unknown), st.sampled_from(ODD_VALUES)),
        st.builds(shorter, below),
        st.sampled_from(LINES).map(lambda line: line + after),
        st.integers(0, len(first)).map(lambda n: first[:n].encode()),
    )


@QUICK
@given(data=mutants("".join(encode(tiny_task(i)) + "\n" for i in range(2))))
def test_any_task_file(checkout: Path, data: bytes) -> None:
    file = checkout / "tasks.jsonl"
    file.write_bytes(data)
    ended = grpo("tasks", "check", file)
    helps(ended, str(file))
    if ended.code == 0:  # then a night can begin with it
        for task in read_tasks(file):
            encode(task).encode()
            assert signatures(task)
    else:
        assert all(line.startswith(f"{file}:") for line in ended.out.splitlines())


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished night that the commands below can read."""
    made = make_night(tmp_path_factory.mktemp("nights"), n_steps=2)
    data = made.config.data
    lines = ["[run]", "steps = 2", "eval_every = 0", "[data]"]
    lines += [f'pool = "{data.pool}"', f'heldout = "{data.heldout}"', ""]
    made.folder.config.write_text("\n".join(lines))
    return made.folder


COMMANDS = [("show", "--step", "2"), ("show", "--step", "2", "--task", "p000"), ("replay",)]


@QUICK
@given(data=st.data())
def test_any_bundle(night: RunFolder, data: st.DataObject) -> None:
    bundle = night.bundle(2)
    whole = bundle.read_text()
    bundle.write_bytes(data.draw(mutants(whole)))
    try:
        for name, *words in COMMANDS:
            helps(grpo(name, night.path, *words), str(night.path))
    finally:
        bundle.write_text(whole)
