"""The warm start: what it learns from, and that it leaves an adapter that the house accepts."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import typer

from fieldkit.codec import encode, encode_trajectory, plain
from fieldkit.errors import BadInput, Interrupted, NotOwner, Shortage
from fieldkit.files.atomic import read_json, sha256_file, sha256_text
from fieldkit.records import Trajectory
from fieldkit.training.adapter import check_adapter, other_base
from fieldkit.training.canary_record import read_canary
from rollout.envs.shell_protocol import STOP
from rollout.synth.demonstrate import DemoSettings
from rollout.synth.splits import demonstration_plans
from scripts.base.checkout import ROOT
from scripts.cli.app import app
from scripts.prepare.fresh import write_fresh_adapter
from scripts.prepare.model import DEFAULT_MODEL, build_model
from scripts.prepare.prove import prove
from scripts.prepare.sft import (
    Avoided,
    SftSettings,
    _going_on,
    as_examples,
    command,
    default_avoided,
    fit,
    play_demonstrations,
    warm_start,
)
from tests.conftest import TinyModel
from tests.scripts.evals import trajectory
from tests.tiny_policy import write_tasks

SETTINGS = SftSettings(demos=16, batch_size=4, rank=4, alpha=8)


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> Path:
    return tiny.folder


@pytest.fixture(scope="module")
def avoid(tmp_path_factory: pytest.TempPathFactory) -> Avoided:
    return Avoided((write_tasks(tmp_path_factory.mktemp("data") / "pool.jsonl", 2, "pool"),))


@pytest.fixture(scope="module")
def demos(
    model: Path, avoid: Avoided, tmp_path_factory: pytest.TempPathFactory
) -> list[Trajectory]:
    return play_demonstrations(SETTINGS, model, avoid, tmp_path_factory.mktemp("s"), silent)


def silent(what: str, done: int, total: int) -> None:
    """No progress display."""


def test_every_demonstration_passes_its_task(demos: list[Trajectory]) -> None:
    assert len(demos) == SETTINGS.demos
    assert all(d.grade.passed for d in demos)


def test_the_same_seed_plays_the_same_demonstrations(
    demos: list[Trajectory], model: Path, avoid: Avoided, tmp_path: Path
) -> None:
    again = play_demonstrations(SETTINGS, model, avoid, tmp_path, silent)
    assert [as_examples(d) for d in again] == [as_examples(d) for d in demos]


def test_a_demonstration_shares_nothing_with_files_of_either_sort(
    demos: list[Trajectory], model: Path, avoid: Avoided, tmp_path: Path
) -> None:
    """The third task that is drawn is put into a file, once of each sort; then it is another."""
    plans = list(islice(demonstration_plans(SETTINGS.seed, []), SETTINGS.demos))
    kept = tmp_path / "kept.jsonl"
    kept.write_text(encode(replace(plans[2].task, task_id="kept")) + "\n")
    for wanted in (Avoided((kept,)), Avoided((), (kept,))):
        again = play_demonstrations(SETTINGS, model, wanted, tmp_path / "s", silent)
        assert [as_examples(d) for d in again][:2] == [as_examples(d) for d in demos][:2]
        assert as_examples(again[2]) != as_examples(demos[2])


def test_exactly_what_the_policy_writes_is_learned(demos: list[Trajectory]) -> None:
    for demo in demos:
        (example,) = as_examples(demo)
        learned = [label for label in example["labels"] if label != -100]
        assert learned == [i for turn in demo.turns for i in turn.completion_ids]
        last = demo.turns[-1]
        assert tuple(example["input_ids"]) == last.prompt_ids + last.completion_ids


def test_a_warm_start_leaves_an_adapter_its_settings_and_its_data(
    model: Path, avoid: Avoided, tmp_path: Path
) -> None:
    out = tmp_path / "warm"
    warm_start(SETTINGS, model, avoid, out, silent)
    info = check_adapter(out, model)
    assert (info.rank, info.alpha) == (4, 8)
    said = read_json(out / "sft.json")
    assert said["settings"] == plain(SETTINGS)
    assert said["command"] == f"grpo sft {out} --demos 16 --seed 1 && grpo prove {out}"
    (kept,) = (tmp_path / "warm.work").glob(f"demos-{model.name}-16-0.06-seed1-*.jsonl")
    assert sha256_file(kept) == said["demos_sha256"]

    prove(out, model, avoid.tasks[0], "float32")
    assert read_canary(out / "canary.json").adapter_sha == info.sha


def test_demonstrations_are_kept_only_for_the_tasks_and_the_tokenizer_that_they_were_made_for(
    model: Path, avoid: Avoided, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[Avoided] = []

    def play(settings: object, model: object, avoid: Avoided, *_: object) -> list[Trajectory]:
        played.append(avoid)
        return []

    def killed(*_: object) -> dict[str, float]:
        raise Interrupted("interrupted")

    def made(model: Path, avoid: Avoided) -> int:
        with pytest.raises(Interrupted):
            warm_start(SETTINGS, model, avoid, tmp_path / "warm", silent)
        return len(played)

    monkeypatch.setattr("scripts.prepare.sft.play_demonstrations", play)
    monkeypatch.setattr("scripts.prepare.sft.fit", killed)
    assert (made(model, avoid), made(model, avoid)) == (1, 1)
    other = Avoided((write_tasks(tmp_path / "other.jsonl", 2, "other"),))
    assert (made(model, other), made(model, avoid)) == (2, 2)
    copy = shutil.copytree(model, tmp_path / "copy" / model.name)
    config = read_json(copy / "tokenizer_config.json")
    (copy / "tokenizer_config.json").write_text(json.dumps(config | {"padding_side": "odd"}))
    assert made(copy, avoid) == 3


def test_a_training_that_was_stopped_goes_on_and_ends_as_if_it_had_not_been(
    demos: list[Trajectory], model: Path, tmp_path: Path
) -> None:
    def nothing(folder: Path, metrics: dict[str, float]) -> None:
        pass

    def stop(what: str, done: int, total: int) -> None:
        if done == total - 1:
            raise Interrupted("stopped")

    batches: list[int] = []
    kept = tmp_path / "training"
    fit(demos, SETTINGS, model, tmp_path / "whole", silent)
    with pytest.raises(Interrupted):
        fit(demos, SETTINGS, model, tmp_path / "cut", stop, nothing, kept)
    assert not (tmp_path / "cut").exists()
    (kept / "checkpoint-9999").mkdir()  # of which a kill left half
    fit(demos, SETTINGS, model, tmp_path / "cut", lambda _, n, __: batches.append(n), nothing, kept)
    assert len(batches) in (1, 2)
    for name in ("adapter_model.safetensors", "sft_loss.json"):
        assert sha256_file(tmp_path / "cut" / name) == sha256_file(tmp_path / "whole" / name)
    assert not kept.exists()


def test_of_several_gpus_one_trains_with_the_batch_of_the_settings(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl.trainer.sft_config import SFTConfig

    class Asked(Exception):
        """What TRL was asked for is known."""

    found: Callable[[SFTConfig], None] = SFTConfig.__post_init__

    def four(args: Any) -> None:
        found(args)
        args._n_gpu = 4  # as on a machine with so many

    def train(*, args: Any, **_: Any) -> None:
        raise Asked(args.train_batch_size, max(1, args.n_gpu))

    monkeypatch.setattr(SFTConfig, "__post_init__", four)
    monkeypatch.setattr("trl.trainer.sft_trainer.SFTTrainer", train)
    with pytest.raises(Asked) as asked:
        fit([], SETTINGS, model, tmp_path / "warm", silent)
    assert asked.value.args == (SETTINGS.batch_size, 1)


def test_an_adapter_names_its_base_also_where_that_lies_in_the_hubs_cache(
    tiny: TinyModel, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--somebody--Tiny-1B" / "snapshots" / "0f3a"
    shutil.copytree(tiny.folder, snapshot)
    write_fresh_adapter(SETTINGS, snapshot, tmp_path / "mine")
    info = check_adapter(tmp_path / "mine", snapshot)
    assert info.base_model == "Tiny-1B"
    assert other_base(info, str(snapshot)) is None


COMMITTED = ROOT / "adapters" / "smol-warm"


def test_an_adapter_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "my warm"
    out.mkdir()
    (out / "adapter_model.safetensors").write_text("weeks of work")
    with pytest.raises(BadInput, match=r"would be lost; `grpo sft '.*my warm-again'` writes"):
        warm_start(SETTINGS, tmp_path / "model", Avoided(()), out, silent)
    assert [p.name for p in tmp_path.rglob("*")] == ["my warm", "adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (
            Interrupted("interrupted"),
            r"^stopped; .*warm\.work keeps .* training, and the same command goes on",
        ),
        (OSError(errno.ENOSPC, "No space"), r"^no space left .*warm\.work keeps .* goes on; free"),
    ],
)
def test_what_ends_the_training_is_said_to_lose_nothing(
    why: Exception,
    said: str,
    model: Path,
    avoid: Avoided,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(*_: object) -> dict[str, float]:
        raise why

    monkeypatch.setattr("scripts.prepare.sft.play_demonstrations", lambda *_: [])
    monkeypatch.setattr("scripts.prepare.sft.fit", ended)
    with pytest.raises((Interrupted, Shortage), match=said):
        warm_start(SETTINGS, model, avoid, tmp_path / "warm", silent)


def test_two_commands_do_not_make_one_adapter(
    model: Path, avoid: Avoided, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "warm"

    def meanwhile(*_: object) -> list[Trajectory]:
        with pytest.raises(NotOwner, match=r"another `grpo sft` makes it: `kill \d+` ends it"):
            warm_start(SETTINGS, model, avoid, out, silent)
        return []

    monkeypatch.setattr("scripts.prepare.sft.play_demonstrations", meanwhile)
    monkeypatch.setattr("scripts.prepare.sft.fit", lambda *_: {})
    warm_start(SETTINGS, model, avoid, out, silent)


def test_what_came_to_the_adapters_place_while_it_was_trained_is_not_replaced(
    demos: list[Trajectory], model: Path, avoid: Avoided, tmp_path: Path
) -> None:
    out = tmp_path / "warm"

    def another(what: str, done: int, total: int) -> None:
        if what == "SFT batches":
            out.mkdir(exist_ok=True)
            (out / "mine").touch()

    with pytest.raises(BadInput, match="it exists already and would be lost"):
        warm_start(SETTINGS, model, avoid, out, another)
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_the_committed_adapter_was_made_with_the_defaults_by_the_command_it_names() -> None:
    said = read_json(COMMITTED / "sft.json")
    defaults = SftSettings()
    assert said["settings"] == plain(defaults)
    assert said["command"] == command(
        defaults, COMMITTED, f"--demos {defaults.demos}", None, DEFAULT_MODEL
    )
    assert said["command"].startswith("grpo sft adapters/smol-warm ")
    assert 0.04 <= said["demos_that_stop"] / defaults.demos <= 0.06


def test_demonstrations_can_all_end_with_a_stop_after_the_same_work(
    demos: list[Trajectory], model: Path, avoid: Avoided, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, demo=DemoSettings(stop_share=1.0))
    stopping = play_demonstrations(settings, model, avoid, tmp_path, silent)
    assert {d.turns[-1].text for d in stopping} == {STOP}
    assert sum(d.turns[-1].text == STOP for d in demos) < len(demos) / 2
    for ours, theirs in zip(stopping, demos, strict=True):
        assert [t.text for t in ours.turns[:-1]] == [t.text for t in theirs.turns[:-1]]
    assert " --stops 1 " in command(settings, tmp_path, "--demos 16", None, "smol")


def test_the_command_that_makes_an_adapter_again_has_its_passes_and_its_rate(
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, epochs=3, lr=2e-4)
    made = command(settings, tmp_path, "--demos 16", None, "m")
    assert " --demos 16 --epochs 3 --lr 0.0002 --seed" in made


def test_a_layer_that_the_model_lacks_is_told_before_anything_is_played(
    model: Path, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, target_modules=("q_proj", "qkv_proj"))
    for make in (
        lambda: warm_start(settings, model, Avoided(()), tmp_path / "warm", silent),
        lambda: write_fresh_adapter(settings, model, tmp_path / "warm"),
    ):
        with pytest.raises(BadInput, match=r"--lora qkv_proj: .* no such layer; it has .*q_proj"):
            make()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "name"), [(None, "x"), ("gemma3-270m", "x"), ("my models/m", "my x")]
)
def test_the_command_is_one_that_grpo_understands(model: str | None, name: str) -> None:
    """Both halves of it, to the last word; what they then do has tests of its own."""
    grpo = typer.main.get_group(app)
    out = Path("adapters") / name
    made = command(SftSettings(seed=7), ROOT / out, "--demos 16", model, model or "smol")
    for half in made.split(" && "):
        name, *words = shlex.split(half.removeprefix("grpo "))
        understood = grpo.commands[name].make_context(name, words).params
        assert understood.get("out", understood.get("adapter")) == out
        assert (understood.get("demos", 16), understood.get("seed", 7)) == (16, 7)
        assert understood["model"] in (model, *(["smol"] if model is None else []))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_committed_adapter_s_demonstrations_are_played_again_to_the_byte(
    tmp_path: Path,
) -> None:
    """Two minutes. The tokenizer, the tasks, the sandbox and the seeds are those of the time."""
    demos = play_demonstrations(SftSettings(), build_model(), default_avoided(), tmp_path, silent)
    kept = "".join(encode_trajectory(d) + "\n" for d in demos)
    assert sha256_text(kept) == read_json(COMMITTED / "sft.json")["demos_sha256"]


def test_training_goes_on_for_the_same_ids_and_model_and_no_other(tmp_path: Path) -> None:
    def kept(demos: Sequence[Trajectory], model: Path) -> Path:
        with _going_on(tmp_path, demos, SftSettings(), model) as folder:
            return folder

    models = [tmp_path / name for name in ("a", "b")]
    for model in models:
        model.mkdir()
        (model / "config.json").write_text("{}")
    demo = trajectory("t", "sha", 4, 2, True)
    again = replace(demo, turns=tuple(replace(t, seconds=9.0) for t in demo.turns))
    other = replace(demo, turns=tuple(replace(t, completion_ids=(7,) * 10) for t in demo.turns))
    first = kept([demo], models[0])
    assert kept([again], models[0]) == first
    assert first not in (kept([other], models[0]), kept([demo], models[1]))
