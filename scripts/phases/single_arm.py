"""Plays one arm for no night: an adapter on an engine of its own, or a model behind an endpoint.

The arm lies in a run folder of no steps, whose step-000 is the policy: so the loop's own code plays
and proves it, what was finished survives a kill, and every command that reads runs can read it. Its
pool is the task file itself, which no rollout accepts beside the same held-out tasks: nothing can
be trained in such a folder. What an earlier start has played counts only while adapter, model,
tasks and environments are still the same. No engine is left, however the command ends.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.client import AsyncChatClient, ChatClient, ChatError, ChatHTTPError
from fieldkit.client.address import is_http
from fieldkit.codec import encode
from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.atomic import sha256_file, sha256_text, write_json, write_text
from fieldkit.training.adapter import CONFIG_FILE, read_adapter
from rollout.arm import EvalSummary, evaluate_arm, read_eval
from rollout.engine.guard import ended_afterwards
from rollout.envs.configured import environment_hashes
from rollout.player import Player
from rollout.policies import chatting, refused
from rollout.sandbox.base import probe
from rollout.sandbox.command import SandboxKind
from scripts.base import machine
from scripts.base.checkout import ROOT
from scripts.base.events import Tell, alarm, note
from scripts.base.signals import Wish, listening
from scripts.phases.checks import check_model, check_prompts, check_start_adapter, doubt
from scripts.phases.context import Context
from scripts.phases.eval import evaluate, told
from scripts.phases.final_set import open_final_set
from scripts.phases.make_player import reward, show, worlds
from scripts.phases.registry import STEP
from scripts.phases.start import evaluation_identity, start_summary, write_step_zero
from scripts.prepare.best_episodes import ENDPOINT
from scripts.prepare.start_adapter import downloading
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from scripts.run.manifest import (
    manifest_of,
    model_hashes,
    new_manifest,
    program_version,
    read_manifest,
)
from scripts.run.template import template_hash
from scripts.run.timings import Stopwatch, process_began
from scripts.run.verify import put_aside_changes

AT_ONCE = 16
"""Episodes in flight against an endpoint, unless `--set rollout.concurrency` says another number:
it is somebody else's server."""

TEXT_FORM = "text"
"""How an endpoint is told of tools: nobody here sees its chat template."""

_LOOK_SECONDS = 10.0  # for the endpoint's list of models
_ANSWER_SECONDS = 300.0  # for one reply, its wait in the endpoint's queue included


@dataclass(frozen=True)
class Endpoint:
    """A model behind chat completions."""

    url: str
    model: str
    api_key: str

    @property
    def identity(self) -> str:
        """What stands for the adapter's hash: of the address and the name, never of the weights,
        which nobody here can see."""
        return f"endpoint-{sha256_text(json.dumps([self.url, self.model]))}"


def find_endpoint(url: str, model: str | None, api_key: str) -> tuple[Endpoint, int | None]:
    """The model `model` at `url` (None: the only one there), and the tokens of its context where
    the endpoint tells.

    Raises `Unavailable` where nothing answers, and `BadInput` for an address that is none, a key
    that is refused and a model that is not there.
    """
    if not is_http(url):
        raise BadInput(f"{url}: not an address, as in http://localhost:8000/v1")
    with ChatClient(url, model or "", api_key, timeout=_LOOK_SECONDS, max_retries=0) as client:
        try:
            listed = client.models()
        except ChatError as e:
            asks = f"`curl {client.base_url}/models` asks the server"
            known = refused(e, model or "") if isinstance(e, ChatHTTPError) else Unavailable(str(e))
            raise type(known)(f"{known}; is it up? {asks}") from None
    names = [str(m["id"]) for m in listed]
    chosen = model or (names[0] if len(names) == 1 else "")
    if chosen not in names:
        what = f"--model {model}: not there" if model else "--model: which one"
        raise BadInput(f"{what}; {url} serves {', '.join(names) or 'none'}")
    (described,) = [m for m in listed if m["id"] == chosen][:1]
    context = described.get("max_model_len")
    if not isinstance(context, int):
        context = None
    return Endpoint(client.base_url, chosen, api_key), context


def require_adapter(adapter: Path) -> None:
    """Raise `BadInput` where no adapter is in this folder, or one that no server here takes, before
    its model is downloaded."""
    if not (adapter / CONFIG_FILE).is_file():
        hub = ""
        if (found := downloading(str(adapter))) is not None:
            download, own = found
            hub = f". If it is a hub id, `{download}` downloads it; then --adapter {ROOT / own}"
        raise BadInput(
            f"--adapter {adapter}: no {CONFIG_FILE} there, so it is no adapter; `grpo ls` lists the"
            f" runs, whose adapters are RUN/step-NNN/adapter{hub}"
        )
    read_adapter(adapter)


def settings_of(
    policy: Path | Endpoint, model: str, tasks: Path, limit: int | str, temperature: float | None
) -> list[str]:
    """What run.toml has to say, as `table.key=value`.

    model: the base model of an adapter. limit: `eval.tasks`.
    """
    own: dict[str, Any] = {
        "run.steps": 0,
        "data.pool": str(tasks.resolve()),
        "data.heldout": str(tasks.resolve()),
        "eval.tasks": limit,
        "eval.tasks_at_training_temperature": 0,
        "engine.trainer_gib": 0.0,
        "engine.lifecycle": "restart",  # no adapter follows
    }
    if temperature is not None:
        own["eval.temperature"] = temperature
    if isinstance(policy, Endpoint):
        own["model.path"] = f"{policy.model} at {policy.url}"
    else:
        own |= {"model.path": model, "model.adapter": str(policy.resolve())}
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in own.items()]


class _StopNow(Wish):
    """There is no step to finish, so one Ctrl-C is enough."""

    def ask_finish(self) -> None:
        self.ask_now()


@contextmanager
def _entered(folder: RunFolder, tell: Tell, sandbox: SandboxKind) -> Iterator[Context]:
    config = read_config(folder.config, sandbox)
    wish = _StopNow(lambda text: note(tell, text))
    # One event loop for all arms: coroutines of an environment may keep what is of the first.
    with run_lock(folder.lock), listening(wish), asyncio.Runner() as runner:
        yield Context(folder, config, tell, wish, Stopwatch(process_began()), runner=runner)


def _begin(ctx: Context, identity: str, *, is_kept: bool) -> None:
    """Check what the folder holds of this arm, and that it can be played here.

    What was played under other conditions is dropped. Raises `BadInput` where a person keeps it.
    """
    folder, changed = ctx.folder, _changed(ctx, identity)
    if changed and is_kept and folder.evals.exists():
        other = shlex.quote(f"{folder.path}-2")
        raise BadInput(
            f"{folder.path}: {changed} has changed since the evaluation there began, which stays as"
            f" it is; name another folder, as in `--out {other}`"
        )
    if changed:
        note(ctx.tell, f"{changed} has changed since an earlier start: all tasks are played again")
        _drop(ctx, f"{changed} has changed")
    ctx.about_to_play()
    probe(ctx.config.sandbox)


def _changed(ctx: Context, identity: str) -> str:
    """What is not as it was when the arm in this folder was begun; empty where everything is, and
    where none was begun. identity: of the policy now."""
    manifest = read_manifest(ctx.folder)
    if manifest is None:
        return ""
    config, files = ctx.config, manifest["model"]["files"]
    heldout, version = manifest["data"]["heldout"]["sha256"], machine.version()
    envs, envs_now = manifest.get("environments", {}), environment_hashes(config.envs, ROOT)
    base = None if ENDPOINT in files else ctx.model_dir()  # an endpoint's nobody here can see
    model = model_hashes(base) if base else {}
    facts = [
        (str(ctx.start_adapter), manifest["adapter"]["sha"], identity),
        (str(ctx.heldout_file), heldout, sha256_file(ctx.heldout_file)),
        *((config.envs[name].code, envs.get(name), sha) for name, sha in envs_now.items()),
        *((file, files.get(file), sha) for file, sha in template_hash(config.model).items()),
        *((f"{base}/{name}", files.get(name), sha) for name, sha in model.items()),
        (machine.PROGRAM, program_version(manifest) or version, version),
    ]
    return next((what for what, then, now in facts if then != now), "")


def _drop(ctx: Context, why: str) -> None:
    """Remove the arm and the policy that it began with. The manifest goes last: as long as it is
    there, the next start drops the rest."""
    folder = ctx.folder
    gone = [folder.evals, folder.step(0)]
    ctx.journal.append("dropped", removed=[folder.relative(path) for path in gone], why=why)
    folder.summary(0).unlink(missing_ok=True)  # what is half removed is not finished
    for path in gone:
        if path.exists():
            shutil.rmtree(path)
    folder.manifest.unlink()


def play_adapter(
    folder: RunFolder, tell: Tell, sandbox: SandboxKind, *, is_kept: bool
) -> EvalSummary:
    """Serve and prove the adapter that run.toml names, play its arm, and end the engine.

    is_kept: the folder is a person's own, from which nothing that was played is dropped. Raises
    what serving and playing raise; the same call goes on from the finished episodes. Raises
    `BadInput` where those of a kept folder are of another adapter, or of other tasks.
    """
    with _entered(folder, tell, sandbox) as ctx:
        adapter = check_start_adapter(ctx, trains=False)
        _begin(ctx, adapter.sha, is_kept=is_kept)
        put_aside_changes(folder, tell)
        check_model(ctx)
        check_prompts(ctx)
        if (about_the_base := doubt(ctx, adapter)) is not None:
            alarm(tell, about_the_base)
        if folder.finished_steps() == 0:
            identity = evaluation_identity(ctx, ctx.heldout())
            found = new_manifest(folder, ctx.config, ctx.model_dir(), adapter, identity)
            write_json(folder.manifest, found)
            write_step_zero(ctx, adapter)
            write_text(folder.summary(0), encode(start_summary(ctx, adapter.sha)) + "\n")
        ctx.numbers = {STEP: 0}
        with ended_afterwards(folder.path, ctx.engine(), lambda text: note(tell, text)):
            evaluate(ctx)
        return read_eval(folder.evals / ctx.arm_key(adapter.sha))


def play_endpoint(
    folder: RunFolder, endpoint: Endpoint, tell: Tell, sandbox: SandboxKind, *, is_kept: bool
) -> EvalSummary:
    """Play the arm of the model behind the endpoint. is_kept, and what it raises: as
    `play_adapter`."""
    with _entered(folder, tell, sandbox) as ctx:
        _begin(ctx, endpoint.identity, is_kept=is_kept)
        if folder.finished_steps() == 0:
            write_json(folder.manifest, _manifest(ctx, endpoint))
            folder.step(0).mkdir(exist_ok=True)
            write_text(folder.summary(0), encode(start_summary(ctx, endpoint.identity)) + "\n")
        name = f"{endpoint.model} at {endpoint.url}"
        open_final_set(ctx, name, endpoint.identity)

        async def play() -> EvalSummary:
            async with AsyncChatClient(
                endpoint.url, endpoint.model, endpoint.api_key, timeout=_ANSWER_SECONDS
            ) as client:
                return await evaluate_arm(
                    name,
                    ctx.heldout(),
                    player=Player(
                        policy=chatting(client),
                        worlds=worlds(ctx, TEXT_FORM),
                        settings=ctx.eval_limits,
                        adapter_sha=endpoint.identity,
                        policy_version=endpoint.model,
                        reward=reward(ctx),
                    ),
                    evals=folder.evals,
                    samples=ctx.config.eval.samples,
                    on_progress=show(ctx),
                )

        summary = ctx.run_async(play())
        note(tell, told(summary))
        return summary


def _manifest(ctx: Context, endpoint: Endpoint) -> Mapping[str, Any]:
    model = {
        "dir": f"{endpoint.model} at {endpoint.url}",
        "files": {ENDPOINT: endpoint.identity} | template_hash(ctx.config.model),
    }
    adapter = {"sha": endpoint.identity, "other_base": None}
    identity = evaluation_identity(ctx, ctx.heldout())
    return manifest_of(ctx.folder, ctx.config, model, adapter, identity)
