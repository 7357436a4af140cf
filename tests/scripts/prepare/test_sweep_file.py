"""sweep.toml: what it makes, and what is refused with nothing made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from scripts.prepare.presets import run_text
from scripts.prepare.sweep_file import PLAIN, STEPS, make_nights, new_sweep, read_sweep
from scripts.run.assignments import assign
from scripts.run.config import MOST_TASKS, read_config
from scripts.run.folder import SWEEP_FILE, RunFolder, resolve_run

VARY = ["reward.turn_penalty=0,0.2"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "penalty")


def write(folder: RunFolder, text: str) -> Path:
    folder.path.mkdir()
    (folder.path / SWEEP_FILE).write_text(text)
    return folder.path


def test_every_arm_is_played_with_one_seed_before_the_next_seed(folder: RunFolder) -> None:
    sweep = new_sweep(folder, "smol", VARY, "0,7", ["run.steps=20"])
    assert [(n.arm, n.seed) for n in sweep.nights] == [
        ("turn_penalty-0", 0),
        ("turn_penalty-0.2", 0),
        ("turn_penalty-0", 7),
        ("turn_penalty-0.2", 7),
    ]
    for night in sweep.nights:
        config = read_config(night.folder.config)
        assert (config.run.seed, config.run.steps) == (night.seed, 20)
        assert config.reward.turn_penalty == (0.2 if "0.2" in night.arm else 0)
        assert night.folder.path.parent == folder.path


def test_no_night_settles_a_number_of_held_out_tasks_of_its_own(folder: RunFolder) -> None:
    """The preset leaves it to the run, and nights on different tasks could not be compared."""
    for night in new_sweep(folder, "smol", VARY, "0,1", []).nights:
        assert read_config(night.folder.config).eval.tasks == 48
    other = RunFolder(folder.path.with_name("fewer"))
    for night in new_sweep(other, "smol", VARY, "0,1", ["eval.tasks=30"]).nights:
        assert read_config(night.folder.config).eval.tasks == 30


def test_what_is_written_is_what_is_read(folder: RunFolder) -> None:
    sweep = new_sweep(folder, "smol", [*VARY, "rollout.group_size=2,4"], "0", [])
    assert read_sweep(folder.path) == sweep
    assert list(sweep.arms) == [
        "turn_penalty-0-group_size-2",
        "turn_penalty-0-group_size-4",
        "turn_penalty-0.2-group_size-2",
        "turn_penalty-0.2-group_size-4",
    ]


def test_without_a_setting_to_vary_only_the_seed_varies(folder: RunFolder) -> None:
    sweep = new_sweep(folder, "smol", [], "0,1,2", [])
    assert [night.folder.name for night in sweep.nights] == [f"{PLAIN}-seed{n}" for n in range(3)]


def test_all_nights_play_the_same_number_of_tasks(folder: RunFolder) -> None:
    """A night by itself may settle it when it starts."""
    sweep = new_sweep(folder, "smol", VARY, "0,1", [])
    played = {read_config(night.folder.config).eval.tasks for night in sweep.nights}
    assert played == {MOST_TASKS}
    file = folder.path / SWEEP_FILE
    file.write_text(file.read_text().replace(f'"eval.tasks" = {MOST_TASKS}', ""))
    with pytest.raises(BadInput, match=r'write "eval.tasks" = 48 under \[set\]'):
        make_nights(read_sweep(folder.path))


def test_a_setting_is_either_varied_or_set(folder: RunFolder) -> None:
    with pytest.raises(BadInput, match=r"--set reward\.turn_penalty: --vary gives it to every arm"):
        new_sweep(folder, "smol", VARY, "0", ["reward.turn_penalty=0.5"])
    assert not folder.path.exists()


def test_values_with_commas_go_into_the_file(folder: RunFolder) -> None:
    with pytest.raises(BadInput, match=r"a comma ends a value here.* goes into sweep\.toml: `grpo"):
        new_sweep(folder, "smol", ["rollout.stop=[1,2],[3,4]"], "0", [])
    assert not folder.path.exists()


def test_an_arm_and_a_seed_that_are_added_later_get_their_nights(folder: RunFolder) -> None:
    before = new_sweep(folder, "smol", VARY, "0", [])
    first = before.nights[0].folder.config.read_bytes()
    file = folder.path / SWEEP_FILE
    text = file.read_text().replace("seeds = [0]", "seeds = [0, 1]")
    file.write_text(f'{text}\n[arms.both]\n"reward.turn_penalty" = 1\n"reward.pass_bonus" = 0.5\n')
    nights = make_nights(read_sweep(folder.path))
    assert len(nights) == 6
    assert all(night.folder.config.is_file() for night in nights)
    assert before.nights[0].folder.config.read_bytes() == first


def test_a_night_with_other_settings_than_its_arm_is_refused(folder: RunFolder) -> None:
    sweep = new_sweep(folder, "smol", VARY, "0", [])
    file = folder.path / SWEEP_FILE
    file.write_text(file.read_text().replace('penalty" = 0.2', 'penalty" = 0.3'))
    with pytest.raises(
        BadInput,
        match=r"penalty-0\.2-seed0.*reward\.turn_penalty is 0\.2, and 0\.3 by .*another name",
    ):
        make_nights(read_sweep(folder.path))
    assert sweep.nights[1].folder.config.is_file()


@pytest.mark.parametrize(
    "setting",
    ["engine.start_seconds=901", "trainer.tokens_per_microbatch=512", "run.wandb=true"],
)
def test_a_night_may_be_fitted_to_the_machine_as_its_errors_advise_and_stays_so(
    folder: RunFolder, setting: str
) -> None:
    night = new_sweep(folder, "smol", VARY, "0", []).nights[0].folder
    assign(night, [setting])
    fitted = night.config.read_bytes()
    make_nights(read_sweep(folder.path))
    assert night.config.read_bytes() == fitted


def test_what_fits_the_machine_may_differ_from_what_the_sweep_says(folder: RunFolder) -> None:
    sweep = new_sweep(folder, "smol", VARY, "0", ["engine.start_seconds=300"])
    assign(sweep.nights[1].folder, ["engine.start_seconds=901"])
    make_nights(read_sweep(folder.path))
    found = [read_config(night.folder.config).engine.start_seconds for night in sweep.nights]
    assert found == [300, 901]


def test_a_comment_in_a_preset_that_is_edited_stops_no_sweep(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = new_sweep(folder, "smol", VARY, "0", []).nights[0].folder.config.read_bytes()

    def edited(*whatever: Any, **named: Any) -> str:
        return f"# A better comment.\n{run_text(*whatever, **named)}"

    monkeypatch.setattr("scripts.prepare.sweep_file.run_text", edited)
    nights = make_nights(read_sweep(folder.path))
    assert nights[0].folder.config.read_bytes() == before


def test_what_an_arm_varies_stays_as_the_arm_has_it(folder: RunFolder) -> None:
    """Even where a run by itself may change it."""
    sweep = new_sweep(folder, "smol", ["pool.confidence=0.9,0.95"], "0", [])
    assign(sweep.nights[0].folder, ["pool.confidence=0.8"])
    with pytest.raises(BadInput, match=r"confidence is 0\.8, and 0\.9 by .*the same in both"):
        make_nights(read_sweep(folder.path))


def test_how_long_nights_are_is_the_same_for_all_where_the_sweep_says_it(
    folder: RunFolder,
) -> None:
    new_sweep(folder, "smol", VARY, "0", ["run.steps=20"])
    file = folder.path / SWEEP_FILE
    file.write_text(file.read_text().replace('steps" = 20', 'steps" = 40'))
    with pytest.raises(BadInput, match=r"run\.steps is 20, and 40 by .*write the same in both"):
        make_nights(read_sweep(folder.path))


def test_a_sweep_that_halves_says_the_steps_of_its_nights_also_when_they_are_made(
    folder: RunFolder,
) -> None:
    night = new_sweep(folder, "smol", VARY, "0", []).nights[0].folder
    file = folder.path / SWEEP_FILE
    text = file.read_text().replace("[set]", f'[set]\n"{STEPS}" = 40')
    file.write_text(text.replace("seeds = [0]", "seeds = [0]\nhalve_after = 5"))
    before = night.config.read_bytes()
    sweep = read_sweep(folder.path)
    make_nights(sweep)
    assert sweep.steps == 40
    assert night.config.read_bytes() == before


def test_an_arm_of_four_settings_is_named_after_them(folder: RunFolder) -> None:
    more = ["rollout.tasks_per_step=2,4", "rollout.group_size=2,4", "trainer.kl_estimator=k2,k3"]
    sweep = new_sweep(folder, "smol", [*VARY, *more], "0", [])
    assert len(sweep.arms) == 16
    longest = max(sweep.arms, key=len)
    assert longest == "turn_penalty-0.2-tasks_per_step-2-group_size-2-kl_estimator-k2"
    assert read_sweep(folder.path) == sweep


def test_the_longest_name_of_an_arm_leaves_room_for_every_seed(folder: RunFolder) -> None:
    text = f'seeds = [{2**31 - 1}]\n[set]\n"eval.tasks" = 8\n[arms.{{}}]\n'
    path = write(folder, text.format("a" * 85))
    (night,) = make_nights(read_sweep(path))
    assert resolve_run(str(night.folder.path)) == night.folder
    (path / SWEEP_FILE).write_text(text.format("a" * 86))
    with pytest.raises(BadInput, match="take up to 85 letters"):
        read_sweep(path)


def test_arms_whose_names_would_be_too_long_are_numbered(folder: RunFolder) -> None:
    models = [f"model.path={'a' * 50}/{'b' * 50},smol", *VARY]
    sweep = new_sweep(folder, "smol", models, "0", [])
    assert list(sweep.arms) == ["arm-1", "arm-2", "arm-3", "arm-4"]
    assert sweep.arms["arm-4"] == {"model.path": "smol", "reward.turn_penalty": 0.2}
    assert read_sweep(folder.path) == sweep


@pytest.mark.parametrize(
    ("vary", "seeds", "assignments", "said"),
    [
        (["reward.turn_penlty=0,1"], "0", [], "did you mean 'reward.turn_penalty'"),
        (["reward.turn_penlty=0,1"], "0", [], "^--vary reward.turn_penlty=0: unknown key"),
        (["reward.turn_penalty=0,-1"], "0", [], "^--vary reward.turn_penalty=-1: .*turn_penalty"),
        (VARY, "0,-1", [], "^--seeds -1: run.seed: expected"),
        (["reward.turn_penalty=0"], "0", [], "at least two values"),
        (["run.seed=0,1"], "0", [], "set by `seeds`"),
        (VARY, "0,one", [], "whole numbers with commas"),
        (VARY, "0,0", [], "twice"),
        (VARY, "0", ["rollout.temperature=50"], "temperature"),
        (VARY, "0", ["rollout.temperature=1979-05-27"], "temperature"),
        (["model.path=a/b,a_b"], "0", [], "same name"),
    ],
)
def test_a_bad_word_leaves_nothing_behind(
    folder: RunFolder, vary: list[str], seeds: str, assignments: list[str], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        new_sweep(folder, "smol", vary, seeds, assignments)
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seeds = [0]\n[arms]\n", "an arm at least"),
        ("seeds = []\n[arms.a]\n", "no list of whole numbers"),
        ("seeds = [0.5]\n[arms.a]\n", "no list of whole numbers"),
        ("sedes = [0]\n[arms.a]\n", "did you mean 'seeds'"),
        ("seeds = [0]\n[arms.a]\n'reward.kin' = 1\n", "arms.a: unknown key 'reward.kin'"),
        ("seeds = [0]\n[arms]\na = 1\n", "must be a table"),
        ("seeds = [0]\n[arms.'a/b']\n", "cannot name a folder"),
        ("seeds = [0", "not TOML"),
    ],
)
def test_a_bad_file_is_named_with_its_key(folder: RunFolder, text: str, said: str) -> None:
    path = write(folder, text)
    with pytest.raises(BadInput, match=said) as found:
        read_sweep(path)
    assert str(path / SWEEP_FILE) in str(found.value)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("seeds = [0]\n[arms.a]\n'reward.turn_penalty' = -1\n", "arms.a"),
        ("seeds = [0]\n[set]\n'reward.turn_penalty' = -1\n[arms.a]\n", "set"),
    ],
)
def test_an_unsound_value_is_named_with_its_table(folder: RunFolder, text: str, table: str) -> None:
    sweep = read_sweep(write(folder, text))
    with pytest.raises(BadInput, match=rf"sweep\.toml: {table}: reward\.turn_penalty: expected"):
        make_nights(sweep)


def test_what_is_there_already_is_not_written_over(folder: RunFolder) -> None:
    new_sweep(folder, "smol", VARY, "0", [])
    with pytest.raises(BadInput, match=r"grpo sweep run .*penalty"):
        new_sweep(folder, "smol", VARY, "0", [])


def test_a_folder_without_a_sweep_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="grpo sweep new"):
        read_sweep(tmp_path)


def test_a_sweep_that_halves_says_so_and_needs_a_number_of_steps(folder: RunFolder) -> None:
    with pytest.raises(BadInput, match=r'halve_after needs .*: write "run\.steps" = 40 under'):
        new_sweep(folder, "smol", VARY, "0", [], 5)
    assert not folder.path.exists()
    sweep = new_sweep(folder, "smol", VARY, "0", ["run.steps=40"], 5)
    assert read_sweep(folder.path) == sweep
    assert (sweep.halve_after, sweep.steps) == (5, 40)
    assert list(sweep.by_arm) == list(sweep.arms)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('halve_after = "5"\n[arms.a]', "halve_after: '5' is no number of steps"),
        ("halve_after = 0\n[arms.a]", "halve_after: 0 is no number of steps"),
        ('halve_after = 5\n[arms.a]\n"run.steps" = 9', "arms of different run.steps"),
        ("halve_after = 5\n[arms.a]", r"\(--halve-after\): one arm has no better half"),
    ],
)
def test_what_cannot_be_halved_is_refused(folder: RunFolder, lines: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        read_sweep(write(folder, f"seeds = [0]\n{lines}\n"))


@pytest.mark.parametrize("steps", [3, 5])
def test_a_sweep_that_would_drop_no_arm_before_its_end_is_refused(
    folder: RunFolder, steps: int
) -> None:
    with pytest.raises(
        BadInput, match=rf"--halve-after 5\) drops no arm of nights of {steps} steps"
    ):
        new_sweep(folder, "smol", VARY, "0", [f"run.steps={steps}"], 5)
    assert not folder.path.exists()
