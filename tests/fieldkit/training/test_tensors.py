"""Tensors on a disk: a real one of a few kilobytes, which fills up while they are written."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from fieldkit.errors import Shortage, foreseen
from fieldkit.training.tensors import load_tensors, save_tensors
from tests.fieldkit.conftest import FILES, PAGE, PAGES


def tensors(pages: int) -> dict[str, torch.Tensor]:
    """Two tensors of so many pages together."""
    return {name: torch.ones(pages * PAGE // 8) for name in ("a", "b")}


def test_what_fits_is_written(disk: Path) -> None:
    save_tensors(tensors(PAGES - 1), str(disk / "a.safetensors"), {"format": "pt"})
    loaded = load_tensors(str(disk / "a.safetensors"))
    assert {name: t.sum().item() for name, t in loaded.items()} == {
        "a": (PAGES - 1) * PAGE // 8,
        "b": (PAGES - 1) * PAGE // 8,
    }


# With 16 pages all tensors would fit, and the header does not.
@pytest.mark.parametrize("pages", [PAGES, PAGES + 1, 4 * PAGES])
def test_a_disk_that_fills_up_in_the_middle_is_a_shortage_that_names_the_file(
    disk: Path, pages: int
) -> None:
    file = disk / "a.safetensors"
    with pytest.raises(OSError, match="No space left") as caught:
        save_tensors(tensors(pages), file)
    assert caught.value.errno == errno.ENOSPC
    told = foreseen(caught.value)
    assert isinstance(told, Shortage)
    assert str(told).startswith(f"{file}: no space left on this disk")
    assert list(disk.iterdir()) == []
    save_tensors(tensors(PAGES // 2), file)


def test_a_disk_with_room_for_bytes_and_for_no_other_file_is_a_shortage(disk: Path) -> None:
    for i in range(FILES - 1):
        (disk / str(i)).touch()
    with pytest.raises(OSError, match="No space left") as caught:
        save_tensors(tensors(1), disk / "a.safetensors")
    assert caught.value.errno == errno.ENOSPC
    (disk / "0").unlink()
    save_tensors(tensors(1), disk / "a.safetensors")


def test_an_error_that_is_not_the_disks_stays_what_it_is(disk: Path) -> None:
    with pytest.raises((SafetensorError, ValueError)):
        save_tensors({"a": torch.ones(2).to_sparse()}, disk / "a.safetensors")
    (disk / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as caught:
        save_tensors(tensors(1), disk / "folder")
    assert caught.value.errno == errno.EISDIR


def test_a_write_that_the_system_refuses_names_the_file_and_leaves_none(tmp_path: Path) -> None:
    file, (soft, hard) = tmp_path / "a.safetensors", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            save_tensors(tensors(PAGES), str(file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(file)
    assert not file.exists()


def test_a_write_that_fails_leaves_the_file_that_was_there(disk: Path) -> None:
    file = disk / "a.safetensors"
    save_tensors(tensors(2), file)
    with pytest.raises(OSError, match="No space left"):
        save_tensors(tensors(PAGES), file)
    assert load_tensors(file)["a"].tolist() == [1.0] * (2 * PAGE // 8)
    assert list(disk.iterdir()) == [file]
