"""`grpo plan` as a person types it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json
from scripts.base.checkout import ROOT
from scripts.cli.app import app
from scripts.cli.capacity import seconds
from scripts.prepare.capacity.advice import ATTEMPTS
from scripts.prepare.capacity.box import shipped_boxes
from scripts.run.folder import RunFolder
from scripts.words.quantities import percent
from tests.scripts.cli.in_process import grpo, helps
from tests.scripts.cli.test_any_input import QUICK, mutants


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", *words])


def test_without_a_run_every_box_is_predicted_for_a_default_night() -> None:
    said = typed()
    assert said.exit_code == 0, said.output
    assert all(name in said.output for name in shipped_boxes())
    assert "default-night elsewhere" in said.output
    assert "predicted" in said.output


def test_a_run_is_told_with_what_was_measured() -> None:
    said = typed("first-night", "--box", "spark").output
    assert "measured: 2 cores of AMD EPYC" in said
    assert "The run's bundles are not here" in " ".join(said.split())
    assert "buy" in said


def test_a_box_in_detail_has_parts_memory_bend_and_what_to_buy() -> None:
    said = " ".join(typed("--box", "spark", "--model", "qwen2.5-7b-instruct").output.split())
    tables = ("by attempts: predicted", "by machines: predicted")
    for words in ("decoding", "the gradient", "Memory: engine about", *tables):
        assert words in said
    assert "The largest part is decoding" in said
    assert "measured: " not in said


@pytest.mark.parametrize(
    ("cheap", "says"), [(16, "long until 16 are"), (ATTEMPTS[-1], "long at least until 1024 are")]
)
def test_a_number_of_attempts_that_is_only_the_last_one_looked_at_is_told_as_that(
    cheap: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.prepare.capacity.advice.Case.cheap_attempts", lambda case: cheap)
    said = " ".join(typed("--box", "spark").output.split())
    assert f"twice the attempts take less than 1.5 times as {says} reached" in said


def test_several_devices_are_told_how_to_start_the_trainer() -> None:
    few = " ".join(typed("--box", "h100-x8").output.split())
    assert "step 1: one trainer process is predicted to be the fastest, as by default" in few
    large = ("--box", "h100-x8", "--model", "Qwen2.5-7B-Instruct", "--attempts", "1024")
    many = " ".join(typed(*large).output.split())
    assert (
        "step 1: 8 trainer processes are predicted to be the fastest (trainer.processes = 8" in many
    )


def test_json_has_the_same_and_can_be_read() -> None:
    found = json.loads(typed("sql-0", "--box", "h100", "--json").stdout)
    assert found["run"] == "sql-0"
    steps = found["predicted"]["h100"]
    assert steps["box"]["tflops"] == 989.0
    first = steps["step 1"]
    assert first["seconds"] == pytest.approx(
        sum(v for part, v in first["time"].items() if part != "processes")
    )
    assert "next" in first
    assert set(found["measured"]) >= {"step 1"}
    assert steps["by_machines"][0]["machines"] == 1
    assert steps["by_machines"][0]["seconds"] == pytest.approx(first["seconds"])
    assert len(steps["by_attempts"]) > 1
    other = json.loads(typed("sql-0", "--box", "h100", "--attempts", "64", "--json").stdout)
    assert other["measured"] == {}, "other steps were measured"


def test_a_small_model_on_a_gpu_is_told_not_to_be_predicted_with_the_error_of_the_docs() -> None:
    off = read_json(ROOT / "docs" / "capacity.json")["tried_on"]["h100"]["step"]
    said = " ".join(typed("--box", "h100", "--box", "epyc-2").output.split())
    assert said.count("Do not trust the predictions for h100: the model is small for a GPU") == 1
    assert said.count("Do not trust the predictions for one H100 SXM:") == 1
    assert f"are predicted {percent(-off['bias'])} too short in the mean" in said
    found = json.loads(typed("--box", "h100", "--box", "epyc-2", "--json").stdout)
    assert list(found["doubt"]) == ["h100"]
    assert found["doubt"]["h100"]["step"] == pytest.approx(off)


def test_a_large_model_on_a_gpu_is_predicted_without_that_doubt() -> None:
    words = ("--box", "h100", "--model", "Qwen2.5-7B-Instruct")
    assert "Do not trust" not in typed(*words).output
    assert json.loads(typed(*words, "--json").stdout)["doubt"] == {}


def test_a_model_that_does_not_fit_is_said_not_to(tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    text = shipped_boxes()["epyc-2"].read_text()
    small.write_text(re.sub(r"(?m)^memory_gb = .*", "memory_gb = 12.0", text, count=1))
    said = " ".join(typed("--box", str(small), "--model", "Qwen2.5-7B-Instruct").output.split())
    assert "does not fit" in said
    assert "Buy memory" in said


def test_a_model_that_fits_only_with_a_setting_is_said_to_need_it(tmp_path: Path) -> None:
    """A 7B in 20 GB: its weights take 15, and activations of 1,024 tokens, kept, 6 more."""
    text = shipped_boxes()["epyc-2"].read_text()
    small = tmp_path / "small.toml"
    small.write_text(re.sub(r"(?m)^memory_gb = .*", "memory_gb = 20.0", text, count=1))
    said = " ".join(typed("--box", str(small), "--model", "Qwen2.5-7B-Instruct").output.split())
    assert "1,024 tokens and trainer.gradient_checkpointing = true, of 20 (predicted)" in said
    assert "does not fit" not in said


def test_a_box_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[box]\ntitle = "mine"\ntflops = 100.0\nmemory_gb_s = 500.0\nmemory_gb = 24.0\n'
    )
    said = typed("--box", str(file), "--box", "h100")
    assert said.exit_code == 0, said.output
    assert "mine: predicted" in said.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--box", "sparc"), "did you mean 'spark'"),
        (("--box", "none.toml"), "no such file"),
        (("--model", "unheard-of"), "neither a folder"),
        (("--attempts", "2"), "fewer than one group"),
        (("no-such-run",), "no such run"),
    ],
)
def test_bad_input_is_told_in_a_sentence(words: tuple[str, ...], message: str) -> None:
    said = typed(*words)
    assert isinstance(said.exception, BadInput)
    assert message in str(said.exception)


def test_seconds_have_about_three_digits() -> None:
    assert [seconds(v) for v in (1234.0, 12.34, 0.123, 0.0123)] == ["1,234", "12.3", "0.1", "0.01"]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The first steps of a real night; made ones were never trained, so they have no work."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "night")
    folder.path.mkdir()
    for name in ("run.toml", "manifest.json"):
        shutil.copy(ROOT / "runs/first-night" / name, folder.path)
    for n in range(3):
        shutil.copytree(ROOT / f"runs/first-night/step-{n:03d}", folder.step(n))
    return folder


def test_the_night_is_read_as_it_is(night: RunFolder) -> None:
    """Else damage to it would show nothing."""
    assert grpo("plan", night.path).code == 0


def test_a_run_without_its_manifest_is_an_error_that_names_it(night: RunFolder) -> None:
    manifest = night.manifest.read_bytes()
    night.manifest.unlink()
    try:
        ended = grpo("plan", night.path)
    finally:
        night.manifest.write_bytes(manifest)
    assert ended.code == 2
    helps(ended, str(night.manifest))


@settings(QUICK, max_examples=20)
@given(data=st.data())
def test_any_manifest_and_any_step_file(night: RunFolder, data: st.DataObject) -> None:
    """Success, or one line that helps."""
    file = data.draw(st.sampled_from([night.manifest, night.summary(1), night.summary(2)]))
    whole = file.read_bytes()
    file.write_bytes(data.draw(mutants(whole.decode())))
    try:
        helps(grpo("plan", night.path, "--box", "spark"), str(night.path), night.path.name)
    finally:
        file.write_bytes(whole)
