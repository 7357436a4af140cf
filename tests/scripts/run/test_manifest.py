"""What a manifest binds a started run to: the host it runs on, and the sandbox it is played in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import plain
from fieldkit.errors import BadInput, NotOwner
from rollout.envs.env_settings import EnvSettings
from rollout.sandbox.command import SandboxKind
from scripts.base import machine
from scripts.base.signals import Wish
from scripts.evidence.findings import read_findings
from scripts.phases.context import Context
from scripts.phases.takeover import takeover
from scripts.run.config import ModelSettings, RunConfig, changed_keys
from scripts.run.lock import LOCK_FD_VARIABLE, run_lock
from scripts.run.manifest import (
    bound_changes,
    check_environments,
    check_host,
    check_sandbox,
    free_changes,
    read_manifest,
    refuse_change,
)
from scripts.run.template import template_hash
from scripts.run.timings import Stopwatch
from tests.scripts.made_night import Night, make_night


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return make_night(tmp_path, n_steps=1)


def edit(night: Night, **values: Any) -> dict[str, Any]:
    """The manifest with these keys changed, written and read again."""
    manifest = json.loads(night.folder.manifest.read_text())
    night.folder.manifest.write_text(json.dumps({**manifest, **values}))
    found = read_manifest(night.folder)
    assert found is not None
    return found


# --- the host -------------------------------------------------------------------------------------


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This machine, with an id whatever it has."""
    identity = {"name": "spark", "machine_id": "1111", "boot_id": "b"}
    monkeypatch.setattr(machine, "host_identity", lambda: identity)
    monkeypatch.setattr("scripts.phases.takeover.host_identity", lambda: identity)
    return identity


def test_a_run_on_its_own_host_goes_on_after_a_reboot(night: Night, here: dict[str, str]) -> None:
    check_host(night.folder, edit(night, host={**here, "boot_id": "another"}))


def test_a_run_of_another_name_is_another_hosts(night: Night, here: dict[str, str]) -> None:
    manifest = edit(night, host={**here, "name": "attic"})
    with pytest.raises(NotOwner, match=r"belongs to host attic, this is spark; .*grpo takeover"):
        check_host(night.folder, manifest)


def test_how_long_a_call_may_take_can_be_changed_during_a_run_and_its_code_cannot() -> None:
    """Else a tool that one reply makes too slow would end the run for good."""
    one = EnvSettings(use="game:Game", passes="reward > 0")
    manifest = {"config": {**RunConfig().plain(), "envs": {"game": plain(one)}}}

    def now(**changed: Any) -> RunConfig:
        return replace(RunConfig(), envs={"game": replace(one, **changed)})

    assert bound_changes(manifest, now(call_seconds=9.0)) == {}
    assert free_changes(manifest, now(call_seconds=9.0)) == {"envs.game.call_seconds": (60.0, 9.0)}
    assert bound_changes(manifest, now(ends="over")) == {"envs.game.ends": ("", "over")}


def test_a_host_that_is_renamed_while_a_loop_runs_ends_no_phase_of_it(
    night: Night, here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = edit(night, host={**here, "name": "attic"})
    with run_lock(night.folder.lock) as fd:
        monkeypatch.setenv(LOCK_FD_VARIABLE, str(fd))
        check_host(night.folder, manifest)


def test_a_run_of_a_machine_of_the_same_name_is_another_hosts_until_it_is_taken_over(
    night: Night, here: dict[str, str]
) -> None:
    manifest = edit(night, host={**here, "machine_id": "2222"})
    with pytest.raises(NotOwner) as error:
        check_host(night.folder, manifest)
    for said in ("machine id 2222", "machine id 1111", f"`grpo takeover {night.folder.typed}`"):
        assert said in str(error.value)
    for n in range(night.folder.finished_steps()):
        night.folder.adapter(n).mkdir()  # the takeover of a copy without weights is refused
    takeover(night.folder)
    taken = read_manifest(night.folder)
    assert taken is not None
    check_host(night.folder, taken)


@pytest.mark.parametrize("host", [{"name": "spark"}, {"name": "spark", "machine_id": ""}])
def test_a_manifest_without_a_machine_id_is_known_by_its_name(
    night: Night, here: dict[str, str], host: dict[str, str]
) -> None:
    check_host(night.folder, edit(night, host=host))


# --- the sandbox ----------------------------------------------------------------------------------


def config(night: Night, kind: SandboxKind) -> RunConfig:
    return replace(night.config, sandbox=replace(night.config.sandbox, kind=kind))


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("none", "bwrap", "repeat the flag: `grpo run {} --sandbox none`"),
        ("bwrap", "none", "leave out --sandbox none"),
    ],
)
def test_a_started_run_is_not_played_in_another_kind_of_sandbox(
    night: Night, was: SandboxKind, now: SandboxKind, says: str
) -> None:
    edit(night, sandbox=was)
    check_sandbox(night.folder, config(night, was))
    with pytest.raises(BadInput) as error:
        check_sandbox(night.folder, config(night, now))
    assert says.format(night.folder.typed) in str(error.value)
    assert str(night.folder.manifest) in str(error.value)


def test_before_its_first_step_a_run_may_be_played_either_way(night: Night) -> None:
    for n in (0, 1):
        night.folder.summary(n).unlink()
    check_sandbox(night.folder, config(night, "none"))


def test_for_a_command_that_only_looks_a_run_without_a_sandbox_has_not_changed(
    night: Night,
) -> None:
    manifest = edit(night, sandbox="none", config=config(night, "none").plain())
    assert bound_changes(manifest, config(night, "bwrap")) == {}


# --- what an older version wrote ------------------------------------------------------------------


def test_a_run_from_before_trainer_seed_went_is_not_changed(night: Night) -> None:
    now = config(night, "bwrap")
    then = now.plain()
    then["trainer"]["seed"] = then["run"]["seed"]
    manifest = edit(night, config=then)
    assert bound_changes(manifest, now) == free_changes(manifest, now) == {}
    assert changed_keys(RunConfig().plain(), then) == changed_keys(RunConfig().plain(), now.plain())


def test_a_key_that_was_added_since_is_no_change_where_it_has_its_default(night: Night) -> None:
    now = config(night, "bwrap")
    then = now.plain()
    del then["pool"], then["engine"]["max_adapters"], then["advantages"]
    manifest = edit(night, config=then)
    assert bound_changes(manifest, now) == free_changes(manifest, now) == {}
    refuse_change(night.folder, manifest, now)


def test_a_key_that_was_added_since_and_differs_from_its_default_is_told(night: Night) -> None:
    now = config(night, "bwrap")
    then = now.plain()
    del then["reward"]["pass_bonus"], then["engine"]["tcmalloc"]
    manifest = edit(night, config=then)
    now = replace(
        now,
        reward=replace(now.reward, pass_bonus=0.5),
        engine=replace(now.engine, tcmalloc=False),
    )
    assert bound_changes(manifest, now) == {"reward.pass_bonus": (0.0, 0.5)}
    assert free_changes(manifest, now) == {"engine.tcmalloc": (True, False)}
    with pytest.raises(BadInput, match=r"reward.pass_bonus was 0.0 when the run started"):
        refuse_change(night.folder, manifest, now)


def test_an_environments_keys_are_told_one_by_one_and_a_new_environment_is_a_change(
    night: Night,
) -> None:
    mine = EnvSettings(use="mine.py:Mine", passes="reward >= 1")
    now = replace(config(night, "bwrap"), envs={"mine": mine})
    then = now.plain()
    del then["envs"]["mine"]["fallback"], then["envs"]["mine"]["sessions"]
    manifest = edit(night, config=then)
    assert bound_changes(manifest, now) == {}, "both were added since, and have their defaults"
    says = replace(now, envs={"mine": replace(mine, fallback="say", passes="reward >= 2")})
    assert bound_changes(manifest, says) == {
        "envs.mine.passes": ("reward >= 1", "reward >= 2"),
        "envs.mine.fallback": ("", "say"),
    }
    other = replace(now, envs={"mine": mine, "other": replace(mine, use="other.py:Other")})
    assert bound_changes(manifest, other) == {"envs.other": (None, "other.py:Other")}
    served = EnvSettings(use="", passes="reward >= 1", style="openenv", url="http://127.0.0.1:8000")
    other = replace(now, envs={"mine": mine, "other": served})
    assert bound_changes(manifest, other) == {"envs.other": (None, "http://127.0.0.1:8000")}
    assert bound_changes(manifest, replace(now, envs={})) == {"envs.mine": ("mine.py:Mine", None)}


def test_a_run_keeps_the_micro_batch_that_it_began_with(night: Night) -> None:
    """A run of an older version began with 4,096, whatever this version would choose."""
    now = config(night, "bwrap")
    assert now.trainer.tokens_per_microbatch is None
    then = now.plain()
    then["trainer"]["tokens_per_microbatch"] = 4096
    edit(night, config=then)
    ctx = Context(night.folder, now, lambda event: None, Wish(), Stopwatch(0.0))
    now = replace(now, trainer=replace(now.trainer, serving_dtype="bfloat16"))
    assert replace(ctx, config=now).trainer().tokens_per_microbatch == 4096
    said = replace(now, trainer=replace(now.trainer, tokens_per_microbatch=512))
    assert replace(ctx, config=said).trainer().tokens_per_microbatch == 512


def test_what_may_change_and_what_may_not_is_told_apart(night: Night) -> None:
    now = config(night, "bwrap")
    then = now.plain()
    then["trainer"] |= {"lr": 0.5, "tokens_per_microbatch": 7}
    manifest = edit(night, config=then)
    assert bound_changes(manifest, now) == {"trainer.lr": (0.5, now.trainer.lr)}
    assert free_changes(manifest, now) == {}, "run.toml leaves it out, so the run keeps its 7"
    now = replace(now, trainer=replace(now.trainer, tokens_per_microbatch=9))
    assert free_changes(manifest, now) == {"trainer.tokens_per_microbatch": (7, 9)}


def test_a_run_of_another_version_is_read_and_not_gone_on_with(night: Night) -> None:
    """A version stands for worlds, protocol and graders."""
    now = config(night, "bwrap")
    here = machine.versions()
    refuse_change(night.folder, edit(night, config=now.plain(), versions=here), now)
    old = edit(night, versions=here | {machine.PROGRAM: "0.0.1"})
    with pytest.raises(
        BadInput, match=r"begun with grpo-loop 0\.0\.1.*`grpo run .*-again` play it"
    ):
        refuse_change(night.folder, old, now)
    assert read_findings(night.folder, now).steps


# --- the chat template ----------------------------------------------------------------------------


def test_a_chat_template_that_changed_under_a_run_is_refused(night: Night, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages }}")
    model = ModelSettings(chat_template=str(file))
    config = replace(night.config, model=model)
    edit(night, model={"dir": "/models/smol", "files": template_hash(model)})
    check_environments(night.folder, config)
    file.write_text("{{ messages }} ")
    with pytest.raises(
        BadInput, match=r"own\.jinja changed since the run started\. Put it back, or"
    ):
        check_environments(night.folder, config)


def test_what_a_policy_is_shown_binds_a_run(night: Night) -> None:
    manifest = edit(night)
    for name, model in (
        ("chat_template", ModelSettings(chat_template="own.jinja")),
        ("chat_template_kwargs", ModelSettings(chat_template_kwargs={"enable_thinking": False})),
        ("tool_form", ModelSettings(tool_form="hermes")),
    ):
        config = replace(night.config, model=model)
        assert list(bound_changes(manifest, config)) == [f"model.{name}"]


def test_a_key_that_follows_another_one_is_no_change_of_its_own(night: Night) -> None:
    """An older version let `trainer.serving_dtype` be "auto" beside an `engine.dtype`."""
    settings = json.loads(night.folder.manifest.read_text())["config"]
    settings["engine"]["dtype"], settings["trainer"]["serving_dtype"] = "float32", "auto"
    manifest = edit(night, config=settings)
    config = replace(
        night.config,
        engine=replace(night.config.engine, dtype="float32"),
        trainer=replace(night.config.trainer, serving_dtype="float32"),
    )
    assert bound_changes(manifest, config) == {}
    other = replace(config, engine=replace(config.engine, dtype="bfloat16"))
    assert bound_changes(manifest, other) == {"engine.dtype": ("float32", "bfloat16")}
