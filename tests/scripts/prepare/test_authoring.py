"""A model's tasks are kept where the sandbox shows that they work, and what became of every reply
is known. The model is a server on this machine that answers as told; the sandbox is real."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode
from fieldkit.errors import BadInput, FieldkitError, Interrupted, NotOwner, Unavailable
from fieldkit.files.journal import Journal
from rollout.synth.written import _EXAMPLE, briefs
from rollout.tasks import read_tasks
from scripts.base.checkout import from_checkout
from scripts.base.display import Progress
from scripts.prepare.authoring import AT_ONCE, Author, Authored, Fate, _Judge, author_tasks
from scripts.run.lock import run_lock
from tests.fieldkit.answering import Endpoint, answering, said
from tests.scripts.typed import BAD_INPUT, grpo

COPIES = (
    "Copy the recipe of the red soup to soup.bak.",
    "Put a second copy of the plan for May into plan.bak.",
    "Nobody may lose these words: duplicate them as words.bak.",
)


def copy_task(number: int, **changes: Any) -> str:
    """A reply whose task is one copy; no two of them are much alike."""
    name = ("soup", "plan", "words")[number]
    task = {
        "prompt": COPIES[number],
        "files": [{"path": f"{name}.txt", "content": f"{name} {number}\n"}],
        "commands": [f"cp {name}.txt {name}.bak"],
        "assertions": [
            {"kind": "file_contents_contain", "path": f"{name}.bak", "must_contain": [f"{number}"]}
        ],
    }
    return json.dumps(task | changes)


class Written:
    """What was kept in a folder's `tasks.jsonl` from a server's replies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "tasks.jsonl"
        self.told: list[str] = []
        self.endpoint: Endpoint | None = None
        self.progress: Progress = lambda what, done, total: None

    def __call__(self, answers: Sequence[tuple[int, str]], wanted: int, **more: Any) -> Authored:
        with answering(answers) as endpoint:
            self.endpoint = endpoint
            return author_tasks(
                Author(endpoint.base_url, "m", "key"),
                wanted,
                self.out,
                self.folder / "scratch",
                self.progress,
                self.told.append,
                **more,
            )

    def fates(self) -> dict[int, str]:
        entries = Journal(self.folder / "tasks.replies.jsonl").read()
        return {e.data["number"]: e.data["fate"] for e in entries if e.event == "reply"}


@pytest.fixture
def write(tmp_path: Path) -> Written:
    (tmp_path / "scratch").mkdir()
    return Written(tmp_path)


def test_what_works_is_kept_and_every_other_reply_has_its_fate(write: Written) -> None:
    replies = [
        said(copy_task(0)),
        said("Sorry, no."),
        said(copy_task(1, assertions=[{"kind": "file_exists", "path": "a", "n": float("nan")}])),
        said(copy_task(1, assertions=[{"kind": "file_exists", "path": "../up"}])),
        said(copy_task(1, assertions=[{"kind": "file_unchanged", "path": "plan.txt"}])),
        said(copy_task(1, commands=["cp plan.txt elsewhere"])),
        said(copy_task(0, files=[{"path": "soup.txt", "content": "other 0\n"}])),
        said(copy_task(2)),
    ]
    # one at a time, because the first of two requests in flight need not arrive first
    found = write(replies, 3, most=len(replies), at_once=1)
    tasks = read_tasks(write.out)
    assert {t.prompt for t in tasks} == {COPIES[0], COPIES[2]}
    assert [t.info["author"] for t in tasks] == ["m", "m"]
    assert found.fates() == {
        Fate.KEPT: (2, ""),
        Fate.UNREADABLE: (2, "there is no JSON object in it"),
        Fate.UNSOUND: (
            1,
            "verifiable_assertions.0.path: '../up' has a component '..'; write the plain path",
        ),
        Fate.IDLE: (1, ""),
        Fate.UNSOLVED: (1, "file_contents_contain plan.bak: no such file"),
        Fate.REPEATED: (1, "resemblance 1.00"),
    }


def test_a_reply_that_was_cut_is_told_from_one_that_is_no_task_also_by_a_later_start(
    write: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, whole = said(copy_task(0)[:50], finish_reason="length"), said(copy_task(1))
    with monkeypatch.context() as patch:
        patch.setattr(_Judge, "all", lambda *_: 1 // 0)  # it ends before a reply is judged
        with pytest.raises(ZeroDivisionError):
            write([cut, whole], 2, most=2, at_once=2)
    found = write([(500, "")], 2, most=2, at_once=2)
    assert found.fates() == {Fate.KEPT: (1, ""), Fate.CUT: (1, "at 1,024 tokens")}


def test_no_task_is_kept_that_resembles_an_evaluation_task(write: Written) -> None:
    evaluated = write([said(copy_task(0))], 1, most=1).kept
    apart = write.folder / "heldout.jsonl"
    apart.write_text("".join(encode(task) + "\n" for task in evaluated))
    other = Written(write.folder)
    other.out = write.folder / "more.jsonl"
    files = {"files": [{"path": "soup.txt", "content": "quite another 0\n"}]}
    found = other([said(copy_task(0, **files))], 1, most=1, apart=[apart])
    (judged,) = found.judged.values()
    assert judged.fate is Fate.EVALUATED
    assert other.out.read_text() == ""


def test_the_same_command_goes_on_and_asks_nothing_twice(write: Written) -> None:
    write([said(copy_task(0))], 1, most=1)
    before = write.out.read_text()
    found = write([said(copy_task(1))], 2, most=2)
    assert write.out.read_text().startswith(before)
    assert [t.prompt for t in found.kept] == [COPIES[0], COPIES[1]]
    assert sorted(write.fates()) == [0, 1]
    assert write.endpoint is not None
    (asked,) = write.endpoint.asked
    second = list(zip(range(2), briefs(0), strict=False))[1][1]
    [message] = asked["messages"]
    assert message["role"] == "user"  # some chat templates refuse a system message
    assert second.persona.intent in message["content"]
    write([(500, "")], 2)  # all are there, so nobody is asked


def test_a_server_that_fails_loses_nothing_that_was_judged(write: Written) -> None:
    answers = [said(copy_task(n)) for n in range(3)] + [(401, "no such key")]
    with pytest.raises(BadInput, match=r"401: no such key: .* --key-from .*; what came .* is kept"):
        write(answers, 5)
    assert sorted(t.prompt for t in read_tasks(write.out)) == sorted(COPIES)
    assert write.endpoint is not None
    assert len(write.endpoint.asked) == AT_ONCE


def test_a_brief_that_the_server_refuses_is_asked_once(write: Written) -> None:
    """A content filter refuses one prompt for good, and one answer may hold no message."""
    answers = [said(copy_task(0)), (400, "content_filter"), (200, "{}"), said(copy_task(1))]
    found = write(answers, 2, at_once=1)
    assert [t.prompt for t in found.kept] == [COPIES[0], COPIES[1]]
    assert found.fates()[Fate.REFUSED][0] == 2
    assert write.told == [], "a server that took a schema takes schemas"
    write([(500, "")], 2)  # all are there, so nobody is asked


def test_a_server_that_refuses_every_brief_is_not_asked_on(write: Written) -> None:
    with pytest.raises(BadInput, match="422: max_tokens is unknown: the endpoint refuses"):
        write([(422, "max_tokens is unknown")], 1, at_once=1)
    assert write.endpoint is not None
    assert len(write.endpoint.asked) == 2, "with a schema and without"
    assert write.fates() == {}


def test_a_server_that_is_asked_too_often_can_be_asked_less(
    write: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldkit.client.chat.LONGEST_WAIT_S", 0.0)
    with pytest.raises(Unavailable, match=r"429: slower; .*the same command goes on; --at-once 1 "):
        write([(429, "slower")], 1, at_once=2)


def test_a_stop_keeps_the_replies_that_came(write: Written) -> None:
    told: list[tuple[str, int, int]] = []

    def stopping(what: str, done: int, total: int) -> None:
        told.append((what, done, total))
        if what == "replies of the author":
            raise Interrupted("interrupted")

    write.progress = stopping
    with pytest.raises(Interrupted):
        write([said(copy_task(0))], 2, most=2, at_once=1)
    assert told == [("tasks written", 0, 2), ("replies of the author", 1, 1)]
    write.progress = lambda what, done, total: None
    found = write([said(copy_task(1))], 2, most=2)
    assert [t.prompt for t in found.kept] == [COPIES[0], COPIES[1]]
    assert write.endpoint is not None
    assert len(write.endpoint.asked) == 1
    journal = Journal(write.folder / "tasks.replies.jsonl").read()
    assert [e.data["text"] for e in journal if e.event == "text"] == [copy_task(0), copy_task(1)]


def test_two_commands_do_not_write_one_file(write: Written) -> None:
    with run_lock(write.folder / "tasks.replies.lock"):
        says = f"{write.out}: another `grpo synth --author` writes it: `kill {os.getpid()}` ends"
        with pytest.raises(NotOwner, match=says):
            write([said(copy_task(0))], 1, most=1)
    assert not write.fates()
    assert write([said(copy_task(0))], 1, most=1).kept


def test_a_kill_before_the_file_is_written_does_not_lock_it(write: Written) -> None:
    """The first reply had failed and was asked for again, so the journal has it behind the second;
    the file does not have it yet."""
    found = write([said(copy_task(0)), said(copy_task(1))], 2, most=2)
    journal = write.folder / "tasks.replies.jsonl"
    *begun, first, second = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(begun) + second + first)
    write.out.write_text(encode(found.kept[1]) + "\n")
    again = write([(500, "")], 2)  # all are there, so nobody is asked
    assert again.kept == [found.kept[1], found.kept[0]] == list(read_tasks(write.out))


def test_a_server_without_json_schemas_is_asked_in_words(write: Written) -> None:
    found = write([(400, "response_format is unknown"), said(copy_task(0))], 1, most=1)
    assert len(found.kept) == 1
    assert write.endpoint is not None
    first, second = write.endpoint.asked
    assert first.pop("response_format")["type"] == "json_schema"
    assert first == second
    assert write.told == [
        f"the server takes no JSON schema; the model is only told: {write.endpoint.base_url}"
        "/chat/completions: HTTP 400: response_format is unknown"
    ]


def test_tasks_of_another_origin_are_not_replaced(write: Written) -> None:
    write.out.write_text("mine\n")
    with pytest.raises(BadInput, match="it holds other tasks; name another file with --out"):
        write([said(copy_task(0))], 1)
    assert write.out.read_text() == "mine\n"


def test_what_is_kept_stays_apart_from_the_same_tasks(write: Written, tmp_path: Path) -> None:
    mine, other = (tmp_path / f"{name}.jsonl" for name in ("mine", "other"))
    kept = {t.prompt: t for t in write([said(copy_task(n)) for n in range(3)], 3, most=3).kept}
    for file, prompt in ((mine, COPIES[1]), (other, COPIES[2])):
        file.write_text(encode(replace(kept[prompt], task_id=file.stem)) + "\n")
    apart = Written(tmp_path / "apart")
    (apart.folder / "scratch").mkdir(parents=True)
    apart([said(copy_task(0))], 1, most=1, apart=[mine])
    for given, reason in (([], f"add --apart {mine}"), ([mine, other], f"without --apart {other}")):
        with pytest.raises(BadInput, match=reason):
            apart([said(copy_task(1))], 2, apart=given)
    found = apart([said(copy_task(1))], 2, most=2, apart=[mine])
    assert found.judged[1].fate is Fate.EVALUATED


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"event": "reply", "number": "x"}, "not a journal of replies"),
        ({"event": "reply", "number": 0, "fate": "LOST"}, "not a journal of replies"),
    ],
)
def test_a_journal_that_does_not_fit_is_refused(
    write: Written, line: dict[str, Any], reason: str
) -> None:
    journal = Journal(write.folder / "tasks.replies.jsonl")
    journal.append("begun", seed=0)
    journal.append(line["event"], **{k: v for k, v in line.items() if k != "event"})
    with pytest.raises(BadInput, match=reason):
        write([said(copy_task(0))], 1)


def test_what_was_begun_with_another_seed_is_not_gone_on_with(write: Written) -> None:
    write([said(copy_task(0))], 1, most=1, seed=7)
    with pytest.raises(BadInput, match="it was begun with --seed 7; give that seed"):
        write([said(copy_task(1))], 2)


def test_a_start_that_got_no_reply_binds_nothing(write: Written, tmp_path: Path) -> None:
    bad = tmp_path / "apart.jsonl"
    bad.write_text("{}\n")
    with pytest.raises(BadInput, match=f"{bad}:1"):
        write([said(copy_task(0))], 1, most=1, apart=[bad])
    with pytest.raises(FieldkitError, match="401"):
        write([(401, "no such key")], 1, most=1)
    found = write([said(copy_task(0))], 1, most=1, seed=7)
    assert read_tasks(write.out) == tuple(found.kept)


def test_a_file_that_was_changed_is_not_gone_on_with(write: Written) -> None:
    write([said(copy_task(0))], 1, most=1)
    write.out.write_text("changed\n")
    with pytest.raises(BadInput, match=r"it is not what .*tasks\.replies\.jsonl says was kept"):
        write([said(copy_task(1))], 2)


def test_the_command_says_what_it_kept_and_that_it_wanted_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "k")
    out, apart = tmp_path / "tasks.jsonl", tmp_path / "mine.jsonl"
    apart.write_bytes(from_checkout("data/development.jsonl").read_bytes())
    listed = json.dumps({"data": [{"id": "m"}]})
    with answering([said(json.dumps(_EXAMPLE)), said("no")], 200, listed) as endpoint:
        told = ["--author", endpoint.base_url, "--model", "m", "--key-from", "MY_KEY"]
        told += ["--seed", "7", "--apart", str(apart)]
        ended = grpo("synth", *told, "--tasks", "2", "--replies", "2", "--out", out, "--json")
    assert ended.returncode == BAD_INPUT
    assert json.loads(ended.stdout)["kept"] == 1
    assert "error: 1 of 2 tasks were kept, of 2 replies" in ended.stderr
    again = f"`grpo synth {' '.join(told)} --tasks 2 --out {out} --replies 4` asks for more"
    assert again in ended.stderr
    (task,) = read_tasks(out)
    assert task.prompt == _EXAMPLE["prompt"]


def test_an_author_needs_a_file_and_replaces_none() -> None:
    without = grpo("synth", "--author", "http://localhost:1/v1")
    assert (without.returncode, "--out: name the file" in without.stderr) == (BAD_INPUT, True)
    forced = grpo("synth", "--author", "http://localhost:1/v1", "--out", "x.jsonl", "--force")
    assert (forced.returncode, "--force: goes only" in forced.stderr) == (BAD_INPUT, True)
