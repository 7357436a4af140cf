"""run.toml is read strictly, and an error says which key of which file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.run.config import RunConfig, changed_keys, read_config
from scripts.run.keys import all_keys


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_an_empty_file_is_every_default(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, "")) == RunConfig()


def test_a_key_lands_in_its_settings(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, "[rollout]\ngroup_size = 8\n[trainer]\nlr = 1\n"))
    assert config.rollout.group_size == 8
    assert config.trainer.lr == 1.0
    assert isinstance(config.trainer.lr, float)


def test_only_the_command_line_leaves_out_the_sandbox(tmp_path: Path) -> None:
    path = write(tmp_path, "[sandbox]\ncommand_seconds = 3\n")
    assert read_config(path).sandbox.kind == "bwrap"
    assert read_config(path, "none").sandbox.kind == "none"
    assert read_config(path, "none").sandbox.command_seconds == 3.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[rollout]\ngroup_sise = 8", "unknown key 'group_sise'; did you mean 'group_size'?"),
        ("[rolout]\n", "unknown table 'rolout'; did you mean 'rollout'?"),
        ("steps = 3", "unknown table 'steps'"),
        ("envs = 3", "each written [envs.NAME]"),
        ("[data.mix]\nsql = 0.0", "data.mix: the share of 'sql' is 0; it must be above 0"),
        ("rollout = 3", "rollout must be a table"),
        ("[rollout]\ngroup_size = 'four'", "rollout.group_size: expected a whole number"),
        ("[rollout]\ngroup_size = 4.5", "rollout.group_size: expected a whole number"),
        ("[rollout]\ngroup_size = true", "rollout.group_size: expected a whole number"),
        (
            "[run]\nstop_when_flat = true\n[reward.schedule]\npass_bonus = [[1, 0.5]]",
            "run.stop_when_flat compares the rewards of steps",
        ),
        (
            "[run]\nstop_when_flat = true\n[rollout]\ndraw = 'frontier'",
            "and rollout.draw goes on to other tasks; leave out one of them",
        ),
        (
            "[rollout]\ntemperature = 'hot'",
            "rollout.temperature: expected a finite number above 0 and of at most 2, found 'hot'",
        ),
        ("[run]\npreflight = 1", "run.preflight: expected true or false"),
        ("[run]\nsteps = 'all'", "run.steps: expected a whole number of at least 0 or 'auto'"),
        (
            "[run]\nsteps = -1",
            "run.steps: expected a whole number of at least 0 or 'auto', found -1",
        ),
        ("[run]\nminutes = 0", "run.minutes"),
        ("[run]\nminutes = inf", "run.minutes: expected a finite number"),
        (f"[run]\nminutes = {'9' * 400}", "run.minutes: expected a finite number"),
        ("[sandbox]\ncommand_seconds = inf", "sandbox.command_seconds: expected a finite number"),
        (
            "[engine]\nport = 99999",
            "engine.port: expected a whole number of at least 0 and of at most 65535",
        ),
        (
            "[engine]\nmax_num_seqs = 0",
            "engine.max_num_seqs: expected a whole number above 0, found 0",
        ),
        ("[run]\nseed = -1", "run.seed"),
        ("[engine]\nlifecycle = 'hotswp'", "did you mean 'hotswap'?"),
        ("[reward]\nkind = 'shape'", "did you mean 'shaped'?"),
        ("[advantages]\ncredit = 'rloo'", 'write scale = "mean" in [advantages]'),
        ("[sandbox]\nkind = 'docker'", "sandbox.kind: expected one of 'bwrap', 'none'"),
        ("[sandbox]\nkind = 'none'", "sandbox, type `grpo run"),
        ("[rollout]\ngroup_size = 1", "group_size"),
        ("[rollout]\ntemperature = nan", "temperature"),
        ("[trainer]\nlr = -1.0", "lr"),
        ("[eval]\ntemperature = 3.0", "eval.temperature"),
        ("[rollout\n", "not valid TOML"),
        ("[rollout]\ngroup_size = 4\ngroup_size = 8", "not valid TOML"),
        (
            '[envs.mine]\nuse = "a:B"\npasses = "r >= 1"\n[envs.mine.rewards]\nf = nan\n',
            "envs.mine.rewards.f: expected a finite number, found nan",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput) as error:
        read_config(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)


def test_rloo_is_read_beside_the_scale_that_it_needs(tmp_path: Path) -> None:
    path = write(tmp_path, "[advantages]\ncredit = 'rloo'\nscale = 'mean'\n")
    assert read_config(path).advantages.credit == "rloo"


def test_a_missing_file_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="grpo new"):
        read_config(tmp_path / "run.toml")


def test_the_trainer_divides_by_the_temperature_that_was_sampled_at(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, "[rollout]\ntemperature = 0.8\n[run]\nseed = 5\n"))
    assert config.trainer.temperature == 0.8
    assert config.rollout.run_seed == 5


LINKED = [(key.dotted.split("."), key.follows.split(".")) for key in all_keys() if key.follows]


@pytest.mark.parametrize(("follower", "leader"), LINKED)
def test_two_keys_for_one_value_must_agree(
    tmp_path: Path, follower: list[str], leader: list[str]
) -> None:
    value = getattr(getattr(RunConfig(), leader[0]), leader[1])
    another = f"not {value}" if isinstance(value, str) else value + 1
    agreeing, other = json.dumps(value), json.dumps(another)
    tables = "[{0[0]}]\n{0[1]} = {1}\n".format
    both = tables(leader, agreeing) + tables(follower, agreeing)
    assert read_config(write(tmp_path, both)) == RunConfig()
    with pytest.raises(BadInput, match=f"leave out {follower[0]}.{follower[1]}"):
        read_config(write(tmp_path, tables(leader, agreeing) + tables(follower, other)))


def test_the_resolved_form_holds_every_key_and_is_json() -> None:
    plain = RunConfig().plain()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["reward"]["kind"] == "shaped"
    assert plain["rollout"]["tasks_per_step"] == 8


def test_changed_keys_are_told_by_their_dotted_names() -> None:
    old = {"run": {"steps": 3, "seed": 0}, "trainer": {"lr": 1.0}}
    new = {"run": {"steps": 5, "seed": 0}, "trainer": {"lr": 2.0}}
    assert changed_keys(old, new) == ["run.steps", "trainer.lr"]
    assert changed_keys(old, old) == []
    assert changed_keys(old, {"run": {"seed": 0}, "trainer": {"lr": 1.0}}) == ["run.steps"]


def test_the_retired_key_of_an_older_file_is_read_where_it_says_nothing_new(tmp_path: Path) -> None:
    same = write(tmp_path, "[run]\nseed = 5\n[trainer]\nseed = 5\n")
    assert read_config(same).run.seed == 5
    other = write(tmp_path, "[run]\nseed = 5\n[trainer]\nseed = 6\n")
    with pytest.raises(BadInput, match=r"trainer\.seed is 6 but run\.seed is 5; .*leave out"):
        read_config(other)
    assert "seed" not in RunConfig().plain()["trainer"]


def test_a_long_reply_needs_only_the_engines_context(tmp_path: Path) -> None:
    text = "[rollout]\nmax_new_tokens = 4096\n[engine]\nmax_model_len = 8192\n"
    assert read_config(write(tmp_path, text)).rollout.max_model_len == 8192
