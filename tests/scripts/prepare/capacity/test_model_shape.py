"""What a model costs a token, against figures that are known of real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.prepare.capacity.model_shape import named_shape, read_shape, shape_of_folder, shipped
from tests.scripts.prepare.capacity.round_numbers import CONFIG, model_folder, shape
from trainer.scoring.shared_prefix import has_lean_layers

QWEN = named_shape("qwen2.5-7b-instruct")


def test_qwen_has_the_parameters_that_are_published() -> None:
    assert QWEN.parameters == pytest.approx(7_615_616_512, rel=1e-4)


def test_a_lora_on_qwen_has_the_parameters_that_a_trainer_counted() -> None:
    """Rank 16 on all linear layers: the article on GRPO on a Spark prints them."""
    assert QWEN.lora_parameters(16) == 40_370_176


def test_the_default_models_lora_has_the_parameters_of_its_night() -> None:
    assert named_shape("SmolLM2-135M-Instruct").lora_parameters(16, ("q_proj", "v_proj")) == 921_600


def test_weights_bytes_and_flops_of_a_round_model(tmp_path: Path) -> None:
    found = read_shape(model_folder(tmp_path / "round"))
    assert found == shape(tmp_path / "round")
    assert found.layer_weights == 900_000_000
    assert found.output_weights == 100_000_000
    assert found.parameters == 1_000_000_000
    assert found.weight_bytes == 2_000_000_000
    assert found.kv_bytes == 2 * 2 * 500 * 100
    assert found.forward_flops(10, 0) == 18e9
    assert found.forward_flops(10, 10) == 20e9
    assert found.gradient_flops(10, 10) == 40e9


def test_an_embedding_of_its_own_counts_but_is_not_read_for_every_token(tmp_path: Path) -> None:
    found = read_shape(model_folder(tmp_path, tie_word_embeddings=False))
    assert found.parameters == 1_100_000_000
    assert found.streamed_bytes == 2_000_000_000


def test_a_heads_width_may_be_its_own(tmp_path: Path) -> None:
    found = read_shape(model_folder(tmp_path, head_dim=200))
    assert (found.queries, found.keys) == (2000, 1000)


def test_every_shipped_model_is_read() -> None:
    assert "Qwen2.5-7B-Instruct" in shipped()
    assert {named_shape(name).name for name in shipped()} == set(shipped())


def test_a_run_of_another_machine_is_known_by_its_models_name() -> None:
    elsewhere = "/somewhere/else/SmolLM2-135M-Instruct"
    assert shape_of_folder(elsewhere) == named_shape("SmolLM2-135M-Instruct")


def test_a_models_own_folder_comes_before_its_name(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "SmolLM2-135M-Instruct")
    assert shape_of_folder(str(folder)).parameters == 1_000_000_000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "wide"}, r"config.json: hidden_size is 'wide', a whole number"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers is 0"),
        ({"vocab_size": True}, r"vocab_size is True"),
        ({"num_local_experts": 8}, r"num_local_experts: a mixture of experts"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        read_shape(model_folder(tmp_path, **changes))


def test_a_key_that_a_config_lacks_is_named(tmp_path: Path) -> None:
    assert "intermediate_size" in CONFIG
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "num_attention_heads": 2}')
    with pytest.raises(BadInput, match=r"intermediate_size is None"):
        read_shape(tmp_path)


def test_a_folder_without_a_config_and_an_unknown_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"config.json: no such file"):
        read_shape(tmp_path)
    assert named_shape("Qwen/Qwen2.5-7B-Instruct") == QWEN
    with pytest.raises(BadInput, match=r"did you mean 'Qwen2.5-7B-Instruct'"):
        named_shape("Qwen2.5-7B-Instuct")
    with pytest.raises(BadInput, match=r"^--model ~nobody-here: neither a folder"):
        named_shape("~nobody-here")
    with pytest.raises(BadInput, match=r"--model names a folder"):
        shape_of_folder("/nowhere/unheard-of")


@pytest.mark.parametrize(
    "name", ["Qwen2.5-7B-Instruct", "Llama-3.1-8B-Instruct", "SmolLM2-135M-Instruct"]
)
def test_the_shipped_shapes_have_the_layers_that_the_trainer_gives_such_models(name: str) -> None:
    assert has_lean_layers(named_shape(name).folder)
