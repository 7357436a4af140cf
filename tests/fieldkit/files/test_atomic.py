"""Files appear whole or not at all."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from fieldkit.errors import BadInput, MissingFile
from fieldkit.files import atomic
from fieldkit.files.atomic import (
    append_line,
    drop_torn_tail,
    locked,
    read_json,
    read_lines,
    sha256_file,
    sha256_text,
    sweep_temporaries,
    take_lock,
    whole_dir,
    write_bytes,
    write_json,
    write_packed,
    write_text,
)
from fieldkit.files.journal import Journal
from tests.fieldkit.conftest import PAGE, PAGES

NOBODY = 2**22  # more than any pid: the kernel's PID_MAX_LIMIT


def _let_the_clock_move(folder: Path) -> None:
    """Until the file system gives a later time than that of all that is in a folder."""
    latest, probe = max(p.stat().st_ctime for p in folder.iterdir()), folder / "probe"
    while not probe.exists() or probe.stat().st_ctime <= latest:
        probe.write_text("")
        os.utime(probe)
    probe.unlink()


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def _write_half(target: Path) -> None:
    with whole_dir(target) as folder:
        (folder / "one").write_text("new")
        raise RuntimeError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"n": 1})
    write_json(path, {"n": 2})
    assert read_json(path) == {"n": 2}
    assert _names(tmp_path) == ["a.json"]


def test_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"n": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"n": float("nan")})
    assert read_json(path) == {"n": 1}
    assert _names(tmp_path) == ["a.json"]


def test_a_failed_rename_leaves_no_temporary_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "inside").touch()
    with pytest.raises(OSError, match="taken"):
        write_bytes(tmp_path / "taken", b"x")
    assert _names(tmp_path) == ["taken"]


def test_a_missing_and_a_malformed_json_file_name_themselves(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"gone\.json: no such file"):
        read_json(tmp_path / "gone.json")
    (tmp_path / "bad.json").write_text('{"a": 1,\n "b": }')
    with pytest.raises(BadInput, match=r"bad\.json:2: not valid JSON"):
        read_json(tmp_path / "bad.json")


def test_a_folder_appears_only_when_all_of_it_is_there(tmp_path: Path) -> None:
    target = tmp_path / "adapter"
    with whole_dir(target) as folder:
        (folder / "one").write_text("1")
        assert not target.exists()
    assert (target / "one").read_text() == "1"


def test_a_folder_that_failed_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "adapter"
    with whole_dir(target) as folder:
        (folder / "one").write_text("old")
    with pytest.raises(RuntimeError):
        _write_half(target)
    assert (target / "one").read_text() == "old"
    assert _names(tmp_path) == ["adapter"]


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one_and_a_sweep_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "adapter", os.rename
    with whole_dir(target) as folder:
        (folder / "one").write_text("old")

    def fails(source: Path, to: Path) -> None:
        if (source / "one").read_text() == "new":
            raise OSError(5, "Input/output error")
        rename(source, to)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="Input/output error"), whole_dir(target) as folder:
        (folder / "one").write_text("new")
    assert sweep_temporaries(tmp_path) == []
    assert (target / "one").read_text() == "old"


def test_a_replaced_folder_keeps_nothing_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "adapter"
    for name in ("old", "new"):
        with whole_dir(target) as folder:
            (folder / name).touch()
    assert _names(target) == ["new"]


def test_what_a_killed_writer_left_can_be_swept(tmp_path: Path) -> None:
    script = (
        "import os, sys, signal; from pathlib import Path\n"
        "from fieldkit.files.atomic import whole_dir\n"
        "with whole_dir(Path(sys.argv[1])) as f:\n"
        "    (f / 'half').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    target = tmp_path / "adapter"
    killed = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(sweep_temporaries(tmp_path)) == 1
    assert _names(tmp_path) == []


_ENDS_AFTER_A_RENAME = """
import os, sys
from fieldkit.files import whole_dir
rename = os.rename
def ends(source, to):
    rename(source, to)
    os._exit(9)
os.rename = ends
with whole_dir(sys.argv[1]) as folder:
    (folder / "new").touch()
"""


def test_a_kill_between_the_two_renames_of_a_replaced_folder_loses_nothing(tmp_path: Path) -> None:
    target = tmp_path / "adapter"
    with whole_dir(target) as folder:
        (folder / "old").touch()
    killed = [sys.executable, "-c", _ENDS_AFTER_A_RENAME, str(target)]
    assert subprocess.run(killed, check=False).returncode == 9
    assert not target.exists()
    assert len(sweep_temporaries(tmp_path)) == 1
    assert (_names(tmp_path), _names(target)) == (["adapter"], ["old"])


def test_of_folders_that_were_moved_aside_the_newest_is_put_back(tmp_path: Path) -> None:
    for pid in (NOBODY - 1, NOBODY):
        (tmp_path / f"adapter.tmp-old-{pid}-0123abcd").mkdir()
        (tmp_path / f"adapter.tmp-old-{pid}-0123abcd" / str(pid)).touch()
        _let_the_clock_move(tmp_path)
    assert len(sweep_temporaries(tmp_path)) == 1
    assert _names(tmp_path / "adapter") == [str(NOBODY)]


def test_an_interrupt_between_the_two_renames_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "adapter", os.rename
    target.mkdir()
    (target / "old").touch()

    def interrupted(source: Path, to: Path) -> None:
        rename(source, to)
        if source == target:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), whole_dir(target) as folder:
        (folder / "new").touch()
    assert (_names(tmp_path), _names(target)) == (["adapter"], ["old"])


def test_a_link_to_a_folder_is_replaced_and_its_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "latest").symlink_to("step-1")
    (tmp_path / "nowhere").symlink_to("gone")
    for name in ("latest", "nowhere"):
        with whole_dir(tmp_path / name) as folder:
            (folder / "new").touch()
        assert not (tmp_path / name).is_symlink()
        assert _names(tmp_path / name) == ["new"]
    assert _names(tmp_path) == ["latest", "nowhere", "step-1"]


def test_sweeping_leaves_finished_files_and_those_of_other_names_alone(tmp_path: Path) -> None:
    names = ["kept.txt", "notes.tmp-ideas.txt", f"notes.tmp-{NOBODY}.txt", ".tmp-1"]
    names += [f"data.tmp-{NOBODY}", f"data.tmp-{NOBODY}-ideas"]
    for name in names:
        write_text(tmp_path / name, "kept")
    assert sweep_temporaries(tmp_path) == []
    assert _names(tmp_path) == sorted(names)


def test_sweeping_leaves_what_a_live_process_is_writing(tmp_path: Path) -> None:
    with whole_dir(tmp_path / "adapter") as folder:
        assert sweep_temporaries(tmp_path) == []
        (folder / "whole").touch()
    assert _names(tmp_path / "adapter") == ["whole"]


def test_sweeping_removes_what_an_earlier_process_of_the_same_pid_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f"a.json.tmp-{os.getpid()}-0123abcd"
    left.touch()
    later = left.stat().st_ctime + 60
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: later)
    assert sweep_temporaries(tmp_path) == [left]


def test_sweeping_removes_what_a_zombie_left(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        left = tmp_path / f"a.json.tmp-{ended.pid}-0123abcd"
        left.touch()
        assert sweep_temporaries(tmp_path) == [left]


def test_threads_that_write_one_file_leave_one_of_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    texts = [str(n) * 1000 * n for n in range(1, 7)]
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(lambda text: write_text(path, text), texts * 5))
    assert path.read_text() in texts
    assert _names(tmp_path) == ["state.json"]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.touch(0o600)
    write_json(path, {"key": "secret"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    for name in ("n" * 250, "é" * 127):
        write_text(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"


def test_lines_are_read_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    append_line(path, "a")
    append_line(path, "ä")
    assert list(read_lines(path)) == [(1, "a"), (2, "ä")]


def test_a_torn_last_line_is_not_read_and_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    append_line(path, json.dumps({"n": 1}))
    with open(path, "a", encoding="utf-8") as f:
        f.write('{"n": 2, "half')  # what a crash leaves
    assert [json.loads(text) for _, text in read_lines(path)] == [{"n": 1}]
    append_line(path, json.dumps({"n": 3}))
    assert [json.loads(text) for _, text in read_lines(path)] == [{"n": 1}, {"n": 3}]


def test_dropping_a_torn_tail_tells_how_much_it_was(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_bytes(b"one\ntwo")
    assert drop_torn_tail(path) == 3
    assert drop_torn_tail(path) == 0
    assert path.read_bytes() == b"one\n"


def test_a_full_disk_keeps_the_old_file_and_is_named(disk: Path) -> None:
    file = disk / "a"
    write_bytes(file, b"old")
    with pytest.raises(OSError, match="No space left") as caught:
        write_bytes(file, bytes(PAGES * PAGE))
    assert caught.value.filename == str(file)
    assert file.read_bytes() == b"old"
    assert _names(disk) == ["a"]


def test_a_disk_that_fills_up_within_a_line_is_named_and_keeps_every_whole_line(disk: Path) -> None:
    file, line = disk / "l.jsonl", "x" * (PAGE - 100)
    for _ in range(PAGES):
        append_line(file, line)
    with pytest.raises(OSError, match="No space left") as caught:
        append_line(file, line)
    assert caught.value.filename == str(file)
    whole = list(read_lines(file))
    assert len(whole) == PAGES
    assert file.stat().st_size == PAGES * PAGE, "the last line is torn"
    (disk / "l.jsonl").write_bytes(file.read_bytes()[PAGE - 99 :])  # room for one line
    append_line(file, "last")
    assert [text for _, text in read_lines(file)] == [line] * (PAGES - 1) + ["last"]


def test_a_line_that_holds_a_newline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="newline"):
        append_line(tmp_path / "l", "a\nb")


def test_a_line_that_is_not_utf8_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_bytes(b"fine\n\xff\n")
    with pytest.raises(BadInput, match=r"l:2: not UTF-8"):
        list(read_lines(path))


def test_the_hash_of_a_file_is_that_of_its_text(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "grün")
    assert sha256_file(tmp_path / "a") == sha256_text("grün")


def test_a_file_that_is_not_there_is_named_and_a_file_not_found(tmp_path: Path) -> None:
    for name in ("gone.jsonl", "gone.jsonl.xz"):
        for use in (sha256_file, lambda path: list(read_lines(path))):
            with pytest.raises(MissingFile, match=rf"{name}: no such file") as missing:
                use(tmp_path / name)
            assert isinstance(missing.value, FileNotFoundError)


def test_a_folder_keeps_the_folders_inside_it(tmp_path: Path) -> None:
    with whole_dir(tmp_path / "step") as folder:
        (folder / "adapter").mkdir()
        (folder / "adapter" / "weights").write_text("1")
    assert (tmp_path / "step" / "adapter" / "weights").read_text() == "1"


def test_a_packed_file_is_read_line_by_line_and_a_cut_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl.xz"
    write_packed(path, [b"one\ntwo\n", b"x" * 10_000, b"\n"])
    assert [text[:3] for _, text in read_lines(path)] == ["one", "two", "xxx"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"l\.jsonl\.xz: not a whole \.xz file"):
        list(read_lines(path))


def test_a_path_may_be_a_text(tmp_path: Path) -> None:
    lines, document, folder = (str(tmp_path / name) for name in ("l", "d.json", "f"))
    append_line(lines, "one")
    with open(lines, "ab") as file:
        file.write(b"torn")
    assert drop_torn_tail(lines) == 4
    assert list(read_lines(lines)) == [(1, "one")]
    write_json(document, 1)
    assert (read_json(document), len(sha256_file(document))) == (1, 64)
    with whole_dir(folder) as inside:
        write_text(str(inside / "a"), "a")
    assert sweep_temporaries(folder) == []
    with locked(lines) as file:
        file.seek(0)
        assert file.read() == b"one\n"
    Journal(str(tmp_path / "j")).append("began")
    assert [entry.event for entry in Journal(tmp_path / "j").read()] == ["began"]


def test_who_waits_for_a_lock_is_told_for_how_long_and_may_give_up(tmp_path: Path) -> None:
    waited: list[float] = []

    def waiting(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise TimeoutError

    with open(tmp_path / "lock", "ab+") as file:
        with locked(tmp_path / "lock"), pytest.raises(TimeoutError):
            take_lock(file.fileno(), waiting)
        assert waited == sorted(waited)
        take_lock(file.fileno(), waiting)
    assert len(waited) == 3, "nobody held it any more"


def sleep_until(end: Connection) -> None:
    end.recv()


def test_a_lock_ends_with_its_block_though_a_child_was_forked_in_it(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    with locked(tmp_path / "lock"):
        child = multiprocessing.get_context("fork").Process(target=sleep_until, args=(there,))
        child.start()
    try:
        with open(tmp_path / "lock", "rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        here.send("end")
        child.join()


def test_of_two_programs_that_sweep_at_once_neither_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "a.tmp-1-0"
    monkeypatch.setattr(atomic, "_left_behind", lambda folder: [(left, tmp_path / "a", False)])
    assert sweep_temporaries(tmp_path) == []


def test_a_files_name_that_is_not_utf_8_comes_back_as_it_was(tmp_path: Path) -> None:
    name = os.fsdecode(b"/data/caf\xe9")
    write_json(tmp_path / "a.json", {"name": name, "beside": "é"})
    assert read_json(tmp_path / "a.json") == {"name": name, "beside": "é"}
