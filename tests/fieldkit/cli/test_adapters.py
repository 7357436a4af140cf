"""`fieldkit delta` and `fieldkit check` on adapters that peft has saved."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fieldkit.cli.command_line import main
from tests.fieldkit.peft_models import base_model, move, peft_model


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    shown = capsys.readouterr()
    return shown.out, shown.err


@pytest.fixture
def adapters(tmp_path: Path) -> tuple[Path, Path]:
    """Two adapters, the second one moved by a thousandth."""
    model: Any = peft_model()
    for name in ("a", "b"):
        model.save_pretrained(str(tmp_path / name), save_embedding_layers=False)
        move(model, 1e-3)
    return tmp_path / "a", tmp_path / "b"


def test_delta_says_how_far_and_what_survives(
    adapters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = map(str, adapters)
    heading, row = run(capsys, "delta", a, b)[0].splitlines()
    assert heading.split() == ["tensor", "L2", "max|Δ|", "L2", "as", "bfloat16", "survives"]
    facts = json.loads(run(capsys, "delta", a, b, "--layers", "--json")[0])["tensors"]
    assert row.split()[1] == f"{facts['all']['l2']:.6g}"
    parts = [moved["l2"] for name, moved in facts.items() if name != "all"]
    assert sum(l2**2 for l2 in parts) ** 0.5 == pytest.approx(facts["all"]["l2"])
    assert 0 < facts["all"]["served_changed"] < 1
    exact = json.loads(run(capsys, "delta", a, b, "--dtype", "float32", "--json")[0])["tensors"]
    assert exact["all"]["served_changed"] == 1.0
    file = str(adapters[1] / "adapter_model.safetensors")
    assert run(capsys, "delta", file, b)[0].split()[-1] == "0.0%"


def test_an_unknown_dtype_and_adapters_that_do_not_compare_are_bad_input(
    adapters: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other: Any = peft_model("qwen2", r=4)
    other.save_pretrained(str(tmp_path / "other"), save_embedding_layers=False)
    for arguments, named in (
        ([str(adapters[0]), str(adapters[1]), "--dtype", "int8"], "--dtype: 'int8' is unknown"),
        ([str(adapters[0]), str(tmp_path / "other")], "has shape [4, 16], [2, 16] is needed"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["delta", *arguments])
        assert named in capsys.readouterr().err


def test_delta_without_torch_names_what_to_install(
    adapters: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="4"):
        main(["delta", *map(str, adapters)])
    assert "`pip install torch`" in capsys.readouterr().err


def test_check_says_what_fits_and_names_what_does_not(
    adapters: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base_model("llama").save_pretrained(str(tmp_path / "llama"))
    base_model("gpt2").save_pretrained(str(tmp_path / "gpt2"))
    shown, _ = run(capsys, "check", str(adapters[0]), "--base", str(tmp_path / "llama"))
    assert "fits" in shown
    assert "q_proj, v_proj" in shown
    config = adapters[0] / "adapter_config.json"
    named = json.loads(config.read_text()) | {"base_model_name_or_path": "org/Other"}
    config.write_text(json.dumps(named))
    shown, said = run(capsys, "check", str(adapters[0]), "--base", str(tmp_path / "llama"))
    assert "fits" in shown
    assert said == "note: the adapter says that it was trained on Other\n"
    config.write_text(json.dumps(named | {"base_model_name_or_path": "me/llama-bnb-4bit"}))
    _, said = run(capsys, "check", str(adapters[0]), "--base", str(tmp_path / "llama"))
    assert said.endswith("trained on llama-bnb-4bit, which has fewer bits\n")
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(adapters[0]), "--base", str(tmp_path / "gpt2")])
    assert "the adapter is for another base" in capsys.readouterr().err
