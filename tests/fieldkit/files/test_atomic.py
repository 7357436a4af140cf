"""Files appear whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.atomic import (
    append_line,
    drop_torn_tail,
    locked,
    read_json,
    read_lines,
    sha256_file,
    sha256_text,
    sweep_temporaries,
    whole_dir,
    write_bytes,
    write_json,
    write_packed,
    write_text,
)
from fieldkit.files.journal import Journal
from tests.fieldkit.conftest import PAGE, PAGES


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
    with pytest.raises(BadInput, match=r"gone\.json: no such file"):
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


def test_sweeping_leaves_finished_files_alone(tmp_path: Path) -> None:
    write_text(tmp_path / "kept.txt", "kept")
    assert sweep_temporaries(tmp_path) == []
    assert _names(tmp_path) == ["kept.txt"]


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
