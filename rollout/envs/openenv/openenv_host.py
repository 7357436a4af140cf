"""Serves an OpenEnv app for the process that started it, and ends with that process.

It runs under the Python of the environment's own virtual environment (`python -I`), so it imports
the standard library, uvicorn (which `openenv` brings) and the app, and nothing of this project. It
binds its port itself, so that no other program can take it between the choice and the bind. It
reports on a descriptor that it is ready, or why it is not, so nobody has to poll. Its standard
input is a pipe whose other end its owner holds: when that closes, whatever killed the owner, the
server ends with everything in its process group.

    python -I openenv_host.py PATH.py:app|MODULE:app FOLDER PORT READY_FD
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
GRACE_SECONDS = 5.0
"""How long the app may take to shut down once its owner is gone."""


def end_with_owner() -> None:
    """Wait for the end of standard input, then end this process group."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


class NoSuchApp(Exception):
    """A module has no app of that name."""


def load(app: str, folder: str) -> Any:
    """The app that `app` names. A relative file or a module is looked for in `folder`. Raises
    `NoSuchApp`."""
    where, _, name = app.rpartition(":")
    if where.endswith(".py"):
        module = load_file(Path(os.path.normpath(Path(folder, where))))
    else:
        sys.path.insert(0, folder)
        module = importlib.import_module(where)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            apps = ", ".join(f"`{n}`" for n, value in vars(module).items() if is_app(value))
            has = f"it has {apps}" if apps else "no app is there: `app = create_app(...)` makes one"
            raise NoSuchApp(f"{where} has no `{name}`; {has}")
        found = getattr(found, part)
    return found


def is_app(value: Any) -> bool:
    """Whether it is an object that is called as an ASGI app is."""
    return callable(value) and inspect.iscoroutinefunction(type(value).__call__)


def folders_of(path: Path) -> tuple[list[Path], str]:
    """Where the imports of a file are looked for, and its name as a module there.

    `openenv init` writes ENV/server/app.py, which imports `..models`, or else `models` and
    `server.…` of the folder ENV. So these are the file's folder, the one above `server`, and the
    one that holds the file's package.
    """
    top, names = path.parent, [path.stem]
    while (top / "__init__.py").is_file():
        names.insert(0, top.name)
        top = top.parent
    above = [path.parent.parent] if path.parent.name == "server" else []
    return [path.parent, *above, top], ".".join(names)


def load_file(path: Path) -> Any:
    """A file as a module, of its package if it is in one."""
    folders, name = folders_of(path)
    sys.path[:0] = dict.fromkeys(map(str, folders))
    if "." in name:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("openenv_app", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    app, folder, port, ready = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.set_inheritable(ready, False)
    threading.Thread(target=end_with_owner, daemon=True).start()

    def tell(**said: Any) -> None:
        os.write(ready, json.dumps(said).encode() + b"\n")

    try:
        import uvicorn

        loaded = load(app, folder)
    except NoSuchApp as e:
        tell(error="name", text=str(e))
        return 1
    except Exception as e:
        missing = e.name if isinstance(e, ModuleNotFoundError) else None
        traceback.print_exc()  # in the log before the owner looks there
        tell(error="import", text=f"{type(e).__name__}: {e}"[:1000], missing=missing)
        return 1
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as e:
        tell(error="port", text=str(e))
        return 1

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                tell(port=listener.getsockname()[1])

    config = uvicorn.Config(
        loaded,
        log_level="warning",
        # A step may hold the event loop for longer than a ping may take; the client sets limits.
        ws_ping_interval=None,
        timeout_graceful_shutdown=1,
    )
    server = Server(config)
    server.run(sockets=[listener])
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
