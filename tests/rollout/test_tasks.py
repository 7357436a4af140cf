"""Task files: what is refused, where, and why."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode, plain
from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.registry import environment_of
from rollout.sandbox.command import SandboxSettings
from rollout.tasks import check_disjoint, check_tasks, decode_tasks, read_tasks, tasks_by_line
from tests.rollout.scripted import write_task


def write(path: Path, *tasks: Task) -> Path:
    path.write_text("".join(encode(t) + "\n" for t in tasks), encoding="utf-8")
    return path


def with_assertions(*assertions: dict[str, Any], files: list[Any] | None = None) -> Task:
    seed = {"files": files} if files is not None else write_task("a").info["workspace_seed"]
    return write_task("a", verifiable_assertions=list(assertions), workspace_seed=seed)


def exists(path: str) -> dict[str, Any]:
    return {"kind": "file_exists", "path": path}


def absent(path: str) -> dict[str, Any]:
    return {"kind": "file_not_exists", "path": path}


def contains(path: str, text: str) -> dict[str, Any]:
    return {"kind": "file_contents_contain", "path": path, "must_contain": [text]}


def matches(path: str, pattern: str) -> dict[str, Any]:
    return {"kind": "file_contents_match_regex", "path": path, "regex": pattern}


def unchanged(path: str) -> dict[str, Any]:
    return {"kind": "file_unchanged", "path": path}


NOTE = {"path": "notes.txt", "kind": "text", "content": ""}
BINARY = [{"path": "logo.png", "kind": "binary", "hex": "89504e47"}]


def test_sound_tasks_are_read_in_order(tmp_path: Path) -> None:
    tasks = write_task("a"), write_task("b")
    path = write(tmp_path / "tasks.jsonl", *tasks)
    assert read_tasks(path) == tasks
    assert check_tasks(path) == ()


def test_a_last_line_without_its_newline_is_a_task(tmp_path: Path) -> None:
    path = write(tmp_path / "tasks.jsonl", write_task("a"), write_task("b"))
    path.write_text(path.read_text().rstrip("\n"))
    assert len(read_tasks(path)) == 2


def test_blank_lines_are_no_tasks_and_do_not_change_the_numbers_of_others(tmp_path: Path) -> None:
    path = write(tmp_path / "tasks.jsonl", write_task("a"))
    path.write_text(f"\n{path.read_text()}  \n\n")
    assert [*tasks_by_line(path).items()] == [(2, write_task("a"))]
    path.write_text("\n")
    [problem] = check_tasks(path)
    assert "there is no task in the file" in problem.reason


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (with_assertions({"kind": "file_is_nice", "path": "a"}), "'file_is_nice' is unknown"),
        (with_assertions(exists("/etc/passwd")), "absolute"),
        (with_assertions(exists("a/../../b")), "'..'"),
        (with_assertions(exists("")), "path"),
        (write_task("a", verifiable_assertions=None), "verifiable_assertions must be a list"),
        (with_assertions(matches("a", "(")), "no valid regular expression"),
        (with_assertions(matches("logo.png", "PNG"), files=BINARY), "binary stub logo.png"),
        (with_assertions(contains("logo.png", "PNG"), files=BINARY), "binary stub logo.png"),
        (with_assertions(exists("a"), absent("a")), "file_exists and file_not_exists of a"),
        (with_assertions(contains("a", "x"), absent("a")), "file_not_exists of a"),
        (with_assertions(exists("a/b"), absent("a")), "file_exists of a/b, but file_not_exists"),
        (
            with_assertions(exists("a/b/c"), contains("a", "x")),
            "a must be a file and the folder of a/b/c",
        ),
        (with_assertions(unchanged("nowhere.txt")), "not in workspace_seed"),
        (with_assertions(unchanged("notes.txt"), contains("notes.txt", "x!")), "stay unchanged"),
        (with_assertions(matches("notes.txt", "^x"), unchanged("notes.txt")), "stay unchanged"),
        (with_assertions(matches("a", r"\Aone\n\Z"), matches("a", r"^two$")), "exclude each other"),
        (with_assertions(contains("a", "x"), matches("a", r"^one\n$")), "exclude each other"),
        (with_assertions(matches("a", r"\A\Z"), matches("a", ".")), "exclude each other"),
        (
            with_assertions(exists("a"), files=[{"path": "../x", "kind": "text", "content": ""}]),
            "..",
        ),
        (with_assertions(exists("a"), files=[{"path": "x", "kind": "stub"}]), "'stub' is unknown"),
        (write_task("a", difficulty="impossible"), "'impossible' is unknown"),
        (write_task("a", persona=None), "info.persona"),
        (write_task("a", oracle="touch a"), "info.oracle: expected a list of commands"),
        (write_task("a", oracle=["touch a", 1]), "info.oracle: expected a list of commands"),
        (replace(write_task("a"), prompt=" "), "prompt is empty"),
        (replace(write_task("a"), env="clawgim"), "did you mean 'clawgym'"),
    ],
)
def test_a_bad_task_is_reported_with_its_line_and_the_reason(
    tmp_path: Path, task: Task, reason: str
) -> None:
    path = write(tmp_path / "tasks.jsonl", write_task("sound"), task)
    (problem,) = check_tasks(path)
    assert problem.where == f"{path}:2"
    assert reason in problem.reason
    assert str(problem).count(str(path)) == 1
    with pytest.raises(BadInput, match=r"tasks\.jsonl:2: .*grpo tasks check"):
        read_tasks(path)


@pytest.mark.parametrize(
    "assertions",
    [
        [unchanged("notes.txt"), contains("notes.txt", "about"), exists("a")],
        [unchanged("notes.txt"), matches("notes.txt", r"^about \w+$"), exists("a")],
        [exists("a/b/c"), exists("a")],
        [exists("a/b"), exists("a/c"), absent("a/d")],
        [absent("a"), exists("ab")],
        [matches("a", r"^(\d+,)*\d+\n$"), contains("a", "1,2")],
        [matches("a", r"^one$"), matches("a", r"\Aone\n\Z"), contains("a", "on")],
        [matches("a", r"\Aone\Z"), matches("b", r"\Atwo\Z"), exists("a")],
        [matches("a", r"(?m)^one$"), matches("a", r"(?m)^two$")],
        [matches("a", r"(?i)\Aone\Z"), matches("a", r"\AONE\Z")],
    ],
)
def test_assertions_that_can_hold_together_are_let_through(
    tmp_path: Path, assertions: list[dict[str, Any]]
) -> None:
    assert check_tasks(write(tmp_path / "t.jsonl", with_assertions(*assertions))) == ()


@pytest.mark.parametrize(
    "task",
    [
        replace(write_task("a"), prompt="half \ud83d"),
        replace(write_task("a"), task_id="\ud83d"),
        with_assertions(contains("a", "half \ud83d")),
    ],
)
def test_half_a_character_is_reported_and_not_met_in_the_night(tmp_path: Path, task: Task) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"schema": 1, **plain(task)}) + "\n")
    (problem,) = check_tasks(path)
    assert "\\ud83d, half of a surrogate pair" in problem.reason
    str(problem).encode()  # it can be printed


PUBLISHED = {
    "task_id": "synth-ml-engineer-04",
    "persona": {"role": "ml-engineer", "context": "trains models"},
    "intent": "Put the logs in order.",
    "workspace_seed": {
        "files": [
            {"path": "a.log", "kind": "text", "content": "x\n"},
            {"path": "model.bin", "kind": "binary-stub", "content": 5000},
        ]
    },
    "skills_required": ["file.move"],
    "verifiable_assertions": [
        {"kind": "file_exists", "path": "logs"},
        {"kind": "file_unchanged", "path": "model.bin"},
    ],
    "difficulty": "medium",
    "estimated_steps": 2,
}


def test_a_file_as_clawgym_publishes_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "clawgym.jsonl"
    path.write_text(json.dumps(PUBLISHED) + "\n")
    assert check_tasks(path) == ()
    (task,) = read_tasks(path)
    assert (task.task_id, task.env) == ("synth-ml-engineer-04", "clawgym")
    assert task.prompt == "Put the logs in order."
    assert task.info == {k: v for k, v in PUBLISHED.items() if k != "task_id"}
    assert decode_tasks(path) == (task,)
    assert read_tasks(write(tmp_path / "again.jsonl", task)) == (task,)


def test_a_row_that_names_its_environment_is_no_published_task(tmp_path: Path) -> None:
    """Sets of intents have the column too."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"environment": "bank", "text": "how much?", "intent": "balance"}\n')
    (problem,) = check_tasks(path)
    assert "environment 'bank' is unknown" in problem.reason or "schema" in problem.reason
    assert "task_id" not in problem.reason


def test_a_published_task_may_speak_of_our_own_keys(tmp_path: Path) -> None:
    wanted = {"kind": "file_contents_contain", "path": "a.log", "must_contain": ["env", "schema"]}
    path = tmp_path / "clawgym.jsonl"
    path.write_text(json.dumps({**PUBLISHED, "verifiable_assertions": [wanted]}) + "\n")
    (task,) = read_tasks(path)
    assert task.info["verifiable_assertions"] == [wanted]


@pytest.mark.parametrize(
    "key", ["persona", "intent", "skills_required", "difficulty", "estimated_steps"]
)
def test_what_only_describes_a_task_may_be_missing(tmp_path: Path, key: str) -> None:
    whole = write_task("a")
    info = {k: v for k, v in whole.info.items() if k != key}
    path = write(tmp_path / "tasks.jsonl", replace(whole, info=info))
    assert check_tasks(path) == ()


@pytest.mark.parametrize("size", [-1, 2**40, True, "12", None])
def test_a_binary_stub_of_no_possible_size_is_refused(tmp_path: Path, size: Any) -> None:
    stub = {"path": "a.bin", "kind": "binary-stub", "content": size}
    (problem,) = check_tasks(
        write(tmp_path / "t.jsonl", with_assertions(exists("b"), files=[stub]))
    )
    assert "content: expected a size" in problem.reason


def test_a_task_that_nothing_can_pass_is_refused_with_its_line(tmp_path: Path) -> None:
    """Held out it would leave a whole night without tables."""
    path = write(tmp_path / "tasks.jsonl", with_assertions())
    with pytest.raises(BadInput, match=r"tasks\.jsonl:1: .*a: verifiable_assertions is empty"):
        read_tasks(path)


@pytest.mark.parametrize(
    ("assertions", "why"),
    [
        ([unchanged("notes.txt")], "doing nothing passes"),
        ([unchanged("notes.txt"), absent("a"), contains("notes.txt", "about")], "doing nothing"),
        ([exists("notes.txt"), matches("notes.txt", "about")], "doing nothing passes"),
    ],
)
def test_a_task_that_tells_nothing_of_a_policy_is_read_with_a_warning(
    tmp_path: Path, assertions: list[dict[str, Any]], why: str
) -> None:
    path = write(tmp_path / "tasks.jsonl", with_assertions(*assertions))
    (problem,) = check_tasks(path)
    assert not problem.fatal
    assert why in problem.reason
    assert str(problem).startswith(f"{path}:1: warning: a: ")
    assert len(read_tasks(path)) == 1


@pytest.mark.parametrize(
    ("typed", "meant"), [("orcale", "oracle"), ("dificulty", "difficulty"), ("personna", "persona")]
)
def test_a_key_that_is_nearly_a_known_one_is_told_and_may_be_the_tasks_own(
    tmp_path: Path, typed: str, meant: str
) -> None:
    whole = write_task("a", **{typed: ["touch a"]})
    info = {key: value for key, value in whole.info.items() if key != meant}
    (problem,) = check_tasks(write(tmp_path / "tasks.jsonl", replace(whole, info=info)))
    assert not problem.fatal
    assert problem.reason == f"info.{typed} is not read; did you mean {meant!r}?"
    info = {**write_task("a", oracle=["touch a"]).info, typed: [], "template": "own"}
    assert check_tasks(write(tmp_path / "own.jsonl", replace(whole, info=info))) == ()


def test_a_folder_of_tasks_is_answered_with_a_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"this is a folder; name a task file, as in .*pool\.jsonl"):
        check_tasks(tmp_path)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([{"path": "big", "kind": "binary-stub", "content": 60_000_000}], "workspace_bytes"),
        ([{"path": f"f{i}", "kind": "text", "content": "x"} for i in range(2100)], "inodes"),
        ([{"path": f"d{i}/f", "kind": "text", "content": "x"} for i in range(1000)], "inodes"),
    ],
)
def test_a_seed_that_no_workspace_holds_is_found_without_one(files: list[Any], why: str) -> None:
    task = with_assertions(exists("b"), files=files)
    (reason,) = environment_of(task).fits(task, SandboxSettings())
    assert why in reason
    assert not environment_of(task).fits(
        task, SandboxSettings(workspace_bytes=2**26, workspace_inodes=5000)
    )


def test_every_bad_line_is_reported(tmp_path: Path) -> None:
    path = write(
        tmp_path / "tasks.jsonl",
        write_task("a"),
        with_assertions(exists("/x")),
        write_task("c"),
    )
    broken = {"schema": 1, "task_id": "d", "env": "clawgym", "prompt": "p"}
    lines = ["not json", json.dumps(broken), json.dumps({**broken, "schema": 9})]
    with open(path, "ab") as f:
        f.write("\n".join(lines).encode() + b"\n\xff\xfe\n")
    problems = check_tasks(path)
    assert [p.where.rpartition(":")[2] for p in problems] == ["2", "2", "4", "5", "6", "7"]
    assert "duplicate id, first in line 1" in problems[0].reason
    assert "info" in problems[3].reason
    with pytest.raises(BadInput, match="6 problems in all"):
        read_tasks(path)


def test_an_empty_pool_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").touch()
    with pytest.raises(BadInput, match=r"pool\.jsonl: there is no task"):
        read_tasks(tmp_path / "pool.jsonl")
    assert len(check_tasks(tmp_path / "pool.jsonl")) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        check_tasks(tmp_path / "pool.jsonl")


def twin(**changes: Any) -> Task:
    """A task that shares nothing with `write_task("held")` but what `changes` copy from it."""
    other = write_task("other")
    info = {**other.info, **changes.pop("info", {})}
    return replace(other, info=info, **changes)


HELD = write_task("held")


@pytest.mark.parametrize(
    ("task", "shared"),
    [
        (twin(task_id="held"), "task_id"),
        (twin(prompt=f"  {HELD.prompt.upper()} "), "prompt"),
        (twin(info={"workspace_seed": HELD.info["workspace_seed"]}), "seed files"),
        (
            twin(info={"verifiable_assertions": HELD.info["verifiable_assertions"][::-1]}),
            "assertions",
        ),
    ],
    ids=["id", "prompt", "files", "assertions"],
)
def test_a_pool_that_shares_a_task_with_the_held_out_set_is_refused(
    tmp_path: Path, task: Task, shared: str
) -> None:
    held_out = write(tmp_path / "heldout.jsonl", write_task("x"), HELD)
    pool = write(tmp_path / "pool.jsonl", write_task("a"), write_task("b"), task)
    with pytest.raises(BadInput, match=rf"pool\.jsonl:3: .*same {shared} .*heldout\.jsonl:2"):
        check_disjoint(pool, held_out)


def test_tasks_of_one_workspace_may_be_split_but_no_single_one_may_be_copied(
    tmp_path: Path,
) -> None:
    def of_project(name: str) -> Task:
        return write_task(name, workspace_seed=HELD.info["workspace_seed"])

    held_out = write(tmp_path / "heldout.jsonl", of_project("c"), of_project("d"))
    pool = write(tmp_path / "pool.jsonl", of_project("a"), of_project("b"))
    check_disjoint(pool, held_out)
    copied = replace(of_project("b"), prompt=of_project("c").prompt)
    pool = write(tmp_path / "pool.jsonl", of_project("a"), copied)
    with pytest.raises(BadInput, match=r"pool\.jsonl:2: .*same prompt .*heldout\.jsonl:1"):
        check_disjoint(pool, held_out)


def test_a_pool_of_other_tasks_is_fine(tmp_path: Path) -> None:
    no_files: dict[str, Any] = {"workspace_seed": {"files": []}}
    one = write_task("a", **no_files, verifiable_assertions=[exists("a")])
    other = write_task("b", **no_files, verifiable_assertions=[exists("b")])
    check_disjoint(
        write(tmp_path / "pool.jsonl", one, write_task("c")),
        write(tmp_path / "heldout.jsonl", other, HELD),
    )
