"""A model of the hub: its copy on this machine, which is downloaded where there is none."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, FieldkitError
from fieldkit.files.atomic import read_json

Bytes = Callable[[int, int], None]
"""Called with (bytes that are here, bytes in all), now and then, from any thread. What it raises
ends the download."""

_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]


def hub_model(hub_id: str, on_bytes: Bytes | None = None) -> Path:
    """The folder of a model of the hub. Without `on_bytes` a download shows its own progress on a
    terminal. An interrupted one goes on where it was. Raises `BadInput`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        # Use the cached copy without asking for a newer one: if `main` moved during the night, one
        # step would serve and train another model than the step before.
        local = Path(snapshot_download(hub_id, allow_patterns=_PATTERNS, local_files_only=True))
        if _is_whole(local):
            return local
    except (LocalEntryNotFoundError, HFValidationError):
        pass  # not here yet, or no id, which the second call says
    shown = None if on_bytes is None else _told_to(on_bytes)
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_PATTERNS, tqdm_class=shown))
    except FieldkitError:
        raise
    except Exception as e:  # the hub client raises a dozen unrelated classes
        why = next(iter(str(e).splitlines()), "")[:200]
        raise BadInput(
            f"model.path: {hub_id} is not a folder, and its download from the hub failed "
            f"({type(e).__name__}: {why}); download it on a machine with "
            "a network and name the folder"
        ) from e


def _is_whole(snapshot: Path) -> bool:
    """Whether a model can be loaded from a hub's copy: a program that read only the settings or the
    tokenizer leaves one without weights."""
    index = snapshot / "model.safetensors.index.json"
    weights = {"model.safetensors"}
    if index.is_file():
        weights = set(read_json(index)["weight_map"].values())
    needed = ("config.json", "tokenizer_config.json", *weights)
    return all((snapshot / name).is_file() for name in needed)


def _told_to(on_bytes: Bytes) -> type[Any]:
    """A progress bar for `snapshot_download` that draws nothing and calls `on_bytes`.

    The hub's client has a bar of files and two of bytes: those that came over the network, and
    those that are in files. Which of them moves depends on how the hub stores a model.
    """
    from tqdm import tqdm

    class Told(tqdm):  # type: ignore[misc]
        most = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # Without a terminal the client disables its bars, which then count nothing.
            super().__init__(*args, **{**kwargs, "disable": False, "file": io.StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            pass  # tqdm holds a lock around it, which an error here would keep for ever

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if self.unit == "B" and self.total:
                Told.most = max(Told.most, int(self.n))
                on_bytes(Told.most, int(self.total))
            return shown

    return Told
