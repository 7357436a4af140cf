"""The style "openenv" of `[envs.NAME]`: a server of OpenEnv's protocol, started here or at a URL.

[envs.catch]
serve = "docs/openenv/catch_server.py:app"
python = ".venv-openenv/bin/python"
passes = "reward >= 1"
"""

from __future__ import annotations

from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file, sha256_text
from fieldkit.records import Task
from rollout.envs.base import Environment, Site
from rollout.envs.env_settings import EnvSettings
from rollout.envs.openenv import openenv_host
from rollout.envs.openenv.openenv_client import Limits
from rollout.envs.openenv.openenv_toolbox import REWARD, OpenEnv, OpenEnvToolbox, Source
from rollout.envs.reward_functions import reward_functions
from rollout.envs.tool_world import ToolWorld, row_of
from rollout.envs.tool_yardsticks import ToolsAsShown
from rollout.envs.user_code import identity, imported_files, installed_packages
from rollout.seeds import world_seed


def openenv_environment(name: str, settings: EnvSettings, root: Path) -> Environment:
    """The environment that `[envs.NAME]` describes. One server serves all worlds of a ledger."""
    source = source_of(name, settings, root)
    servers: dict[Path, OpenEnv] = {}
    chance = ToolsAsShown()

    def server(site: Site) -> OpenEnv:
        ledger = site.ledger or site.scratch / "ledger.json"
        if ledger not in servers:
            servers[ledger] = OpenEnv(source, root, ledger, ledger.parent / "log", site.say)
        return servers[ledger]

    def make(site: Site) -> ToolWorld:
        toolbox = OpenEnvToolbox(server(site))
        return ToolWorld(site, toolbox, settings.passes, on_tools=chance.note)

    async def capacity(site: Site, task: Task, wanted: int) -> int | None:
        return await server(site).capacity(row_of(task), world_seed(task.task_id), wanted)

    return Environment(make=make, tools=chance.known, random_reply=chance.reply, capacity=capacity)


def source_of(name: str, settings: EnvSettings, root: Path) -> Source:
    """The server that the settings describe. Raises `BadInput`."""
    weights = {use: weight for use, weight in settings.rewards.items() if use != REWARD}
    source = Source(
        name,
        url=settings.url,
        serve=settings.serve,
        python=root / Path(settings.python).expanduser() if settings.python else None,
        sessions=settings.sessions,
        show=tuple(settings.show),
        options=settings.config,
        limits=Limits(call_seconds=settings.call_seconds),
        functions=reward_functions(weights, root, f"envs.{name}", own=REWARD),
        weight=settings.rewards.get(REWARD, 1.0),
    )
    if settings.use or settings.ends:
        key = "use" if settings.use else "ends"
        raise BadInput(
            f"envs.{name}.{key}: an OpenEnv server is named by url or serve, and says itself when"
            " an episode is over"
        )
    source.check(root)
    return source


def openenv_identity(name: str, settings: EnvSettings, root: Path) -> str:
    """For a server of ours: a hash of its program, of the files that it imports from where
    `openenv_host` looks for them, and of the packages of its virtual environment. For a
    URL: a hash of the URL, because the code behind it is unknown. Reward functions are part of
    both. Raises `BadInput`, also for an app or a Python that is not there."""
    source = source_of(name, settings, root)
    paid = [identity(use, root, f"envs.{name}") for use in settings.rewards if use != REWARD]
    if not source.serve:
        return sha256_text("\n".join([source.url, *paid]))
    source.launch(root).check()
    where = source.serve.rpartition(":")[0]
    program = root / (where if where.endswith(".py") else f"{where.replace('.', '/')}.py")
    folders, _ = openenv_host.folders_of(program)
    files = imported_files(program, *folders) if program.is_file() else {}
    lines = [source.serve, *(f"{name} {sha256_file(path)}" for name, path in files.items())]
    assert source.python is not None  # `source_of` has checked it
    lines += [*installed_packages(source.python), *paid]
    return sha256_text("\n".join(lines))
