"""A model of the hub: its copy on this machine, which is downloaded where there is none.

`python -m scripts.prepare.hub ID` downloads one and tells of it in JSON lines. Every command does
it so, because the hub's client can be ended at any moment only together with its process: it
downloads in threads of its own.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, FieldkitError, Interrupted, Shortage, foreseen
from fieldkit.files.atomic import read_json
from fieldkit.files.json_text import parse_json
from fieldkit.files.user_cache import cache_dir
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from scripts.base.children import run_child
from scripts.base.display import make_display
from scripts.base.events import Tell, detail, progress
from scripts.base.exit_codes import raise_code

_FILES: dict[str, Any] = {
    "allow_patterns": ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"],
    # The same weights in another form.
    "ignore_patterns": ["consolidated*", "params.json", "original/*"],
}
_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_STOPPED = "stopped; the same command goes on from here"


def may_be_hub_id(named: str) -> bool:
    """Whether it is written as one: an owner and a name. A path from `/`, `.` or `~` is none."""
    return _ID.fullmatch(named) is not None


def hub_model(hub_id: str) -> Path:
    """The folder of a model of the hub, which is downloaded if it is not here, in sight on stderr.

    Raises as `download_beside`; Ctrl-C ends the download at once.
    """
    if (copy := hub_copy(hub_id)) is not None:
        return copy
    log, display = cache_dir() / "download.log", make_display(details=True, out=sys.stderr)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            ledger = Ledger(Path(scratch) / LEDGER_FILE)
            return download_beside(hub_id, ledger, log, display.tell)
    except Interrupted:
        raise Interrupted(_STOPPED) from None
    finally:
        display.close()


def hub_copy(hub_id: str) -> Path | None:
    """The folder of this machine's copy of a model, if it is whole.

    Nobody is asked for a newer one: if `main` moved during the night, one step would serve and
    train another model than the step before.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        copy = Path(snapshot_download(hub_id, **_FILES, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None  # not here yet, or no id, which a download says
    return copy if is_whole(copy) else None


def download_beside(
    hub_id: str,
    ledger: Ledger,
    log: Path,
    tell: Tell,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Path:
    """`download` in a child, which a stop ends at once. Raises as it, and `Interrupted`."""
    said: dict[str, Any] = {}

    def hear(line: str) -> None:
        try:
            said.update(parse_json(line, "download"))
        except BadInput:  # a library printed it
            detail(tell, line)
            return
        if "total" in said:
            here, total = said["here"] // 10**6, said["total"] // 10**6
            progress(tell, "MB of the model", here, total)

    code = run_child(
        [sys.executable, "-P", "-m", "scripts.prepare.hub", hub_id],
        ledger=ledger,
        name="download",
        log=log,
        on_line=hear,
        stop_asked=stop_asked,
    )
    if stop_asked():
        raise Interrupted(_STOPPED)
    raise_code(code, said.get("error", ""), "the download", log)
    return Path(said["folder"])


def download(hub_id: str, bar: type[Any] | None = None) -> Path:
    """Download a model in this process; its folder. Files that came whole are kept where it is
    interrupted.

    bar: a class like tqdm's; the client's own, which a terminal shows, without one. Raises
    `BadInput`, and `Shortage` for a full disk.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        copy = Path(snapshot_download(hub_id, **_FILES, tqdm_class=bar))
        if missing := _missing(copy):
            raise FileNotFoundError(f"it has no {missing}")
    except FieldkitError:  # a stop, as a signal's handler raises it
        raise
    except Exception as e:  # the hub client raises a dozen unrelated classes
        if isinstance(known := foreseen(e), Shortage):
            raise known from e
        if isinstance(e, RepositoryNotFoundError):  # also where it is gated
            raise BadInput(
                f"model.path: the hub gives {hub_id} to nobody without a login, or has no such"
                f" model. If it asks to accept terms, do that at https://huggingface.co/{hub_id},"
                " then type `.venv/bin/hf auth login`"
            ) from e
        why = next(iter(str(e).splitlines()), "")[:200]
        raise BadInput(
            f"model.path: {hub_id} is not a folder, and its download from the hub failed "
            f"({type(e).__name__}: {why}); download it on a machine with "
            "a network and name the folder"
        ) from e
    return copy


def is_whole(snapshot: Path) -> bool:
    """Whether a hub's copy can be loaded."""
    return _missing(snapshot) is None


def _missing(snapshot: Path) -> str | None:
    """A file without which a hub's copy cannot be loaded, and which it lacks: a program that read
    only the settings or the tokenizer leaves one without weights."""
    index = snapshot / "model.safetensors.index.json"
    weights = {"model.safetensors"}
    if index.is_file():
        weights = set(read_json(index)["weight_map"].values())
    needed = ("config.json", "tokenizer_config.json", *sorted(weights))
    return next((name for name in needed if not (snapshot / name).is_file()), None)


def _told() -> type[Any]:
    """A progress bar that writes a JSON line for each piece that comes.

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
            if self.unit == "B" and self.total:
                Told.most = max(Told.most, int(self.n))
                _tell(here=Told.most, total=int(self.total))

    return Told


def _tell(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def main(hub_id: str) -> None:
    """Download it for another program, which ends this one to stop. Its error is the last line."""
    try:
        _tell(folder=str(download(hub_id, _told())))
    except (BadInput, Shortage) as e:
        _tell(error=str(e))
        raise SystemExit(e.exit_code) from e


if __name__ == "__main__":
    main(sys.argv[1])
