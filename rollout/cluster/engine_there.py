"""Becomes a vLLM server on a node: `python -m rollout.cluster.engine_there SPEC HOST PORT`.

The command line and the environment are those of a server on one box, made by the same functions.
They are made on the node, because they depend on its processors and on its build of vLLM.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fieldkit.files.json_text import parse_json
from rollout.engine import vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.leftovers import SCRATCH_VARIABLE
from rollout.engine.target import Target
from rollout.engine.vllm_server import API_KEY_VARIABLE, LoraShape, serving_dtype

_MODULE = "rollout.cluster.engine_there"  # as the main program its __name__ is another one


def command(target: Target, settings: EngineSettings) -> list[str]:
    """The words of this program, but for host and port. `settings`: of the server."""
    spec = {
        "model": str(target.model_dir),
        # As the trainer's canary has it: this machine may lack what the node's processor has.
        "settings": asdict(replace(settings, dtype=serving_dtype(settings, target.model_dir))),
        "lora": target.shape and target.shape.note,
        "adapters": {name: str(path) for name, path in target.paths.items()},
    }
    return [sys.executable, "-P", "-m", _MODULE, json.dumps(spec)]


def serve(spec: dict[str, Any], host: str, port: int) -> None:
    """Replace this process by the server."""
    settings = EngineSettings(**spec["settings"])
    shape = LoraShape.of_note(spec["lora"])
    adapters = {name: Path(path) for name, path in spec["adapters"].items()}
    words = vllm_server.command(Path(spec["model"]), settings, shape, adapters, port, host)
    scratch = Path(os.environ[SCRATCH_VARIABLE])
    env = vllm_server.environment(settings, os.environ[API_KEY_VARIABLE], scratch)
    os.chdir(scratch)  # `python -m` would import from the present folder
    os.execve(words[0], words, env)


def main(words: Sequence[str]) -> None:
    spec, host, port = words
    serve(parse_json(spec, "the server's settings"), host, int(port))


if __name__ == "__main__":
    main(sys.argv[1:])
