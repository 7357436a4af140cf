"""The optimizer's state on disk is that in memory: a run that stops in between is the same run."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import Parameter

from fieldkit.errors import BadInput
from fieldkit.settings import settings_lines
from fieldkit.training.adapter import adapter_sha
from tests.trainer.conftest import make_group, write_bundle
from trainer import optimizer_state
from trainer.checkpoint import state_sha, state_steps
from trainer.inputs import StepInputs
from trainer.optimizer import OPTIMIZERS, OptimizerKind
from trainer.progress import Lines
from trainer.settings import TrainerSettings
from trainer.step import train

ADAMW = TrainerSettings(optimizer="adamw", lr=0.1)
SGD = TrainerSettings(optimizer="sgd", lr=0.1)
GRADIENTS = [{"a": 0.5, "b": -2.0}, {"a": -0.1, "b": 3.0}, {"a": 0.7, "b": 0.2}]


def make_optimizer(
    parameters: dict[str, Parameter], settings: TrainerSettings
) -> torch.optim.Optimizer:
    return OPTIMIZERS[settings.optimizer].make(parameters.values(), settings.lr)


def save_state(
    folder: Path,
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, Parameter],
    steps: int,
    adapter_sha: str,
) -> None:
    kind = OPTIMIZERS[type(optimizer).__name__.lower()]
    optimizer_state.save_state(folder, kind, optimizer, parameters, steps, adapter_sha)


def load_state(
    folder: Path,
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, Parameter],
    adapter_sha: str,
) -> int:
    kind = OPTIMIZERS[type(optimizer).__name__.lower()]
    return optimizer_state.load_state(folder, kind, optimizer, parameters, adapter_sha)


def start() -> dict[str, Parameter]:
    return {"a": Parameter(torch.ones(3)), "b": Parameter(torch.zeros(2, 2))}


def step(
    optimizer: torch.optim.Optimizer, parameters: dict[str, Parameter], grads: dict[str, float]
) -> None:
    for name, parameter in parameters.items():
        parameter.grad = torch.full_like(parameter, grads[name])
    optimizer.step()


@pytest.mark.parametrize("settings", [ADAMW, SGD], ids=lambda s: s.optimizer)
def test_stopping_between_steps_changes_no_bit(tmp_path: Path, settings: TrainerSettings) -> None:
    through = start()
    optimizer = make_optimizer(through, settings)
    for grads in GRADIENTS:
        step(optimizer, through, grads)

    stopped = start()
    for i, grads in enumerate(GRADIENTS):
        anew = make_optimizer(stopped, settings)
        if i:
            assert load_state(tmp_path / str(i - 1), anew, stopped, f"sha{i}") == i
        step(anew, stopped, grads)
        save_state(tmp_path / str(i), anew, stopped, i + 1, f"sha{i + 1}")

    assert all(torch.equal(through[name], stopped[name]) for name in through)
    assert state_steps(tmp_path / "2", "sha3") == 3


def test_a_fresh_optimizer_would_not_have_been_the_same() -> None:
    through, fresh = start(), start()
    optimizer = make_optimizer(through, ADAMW)
    for grads in GRADIENTS:
        step(optimizer, through, grads)
        step(make_optimizer(fresh, ADAMW), fresh, grads)
    assert not torch.allclose(through["a"], fresh["a"])


def test_sgd_moves_by_the_gradient_where_adamw_moves_by_its_sign() -> None:
    by_gradient, by_sign = start(), start()
    step(make_optimizer(by_gradient, SGD), by_gradient, {"a": 0.5, "b": -2.0})
    step(make_optimizer(by_sign, ADAMW), by_sign, {"a": 0.5, "b": -2.0})
    assert torch.allclose(by_gradient["a"], torch.full((3,), 0.95))
    assert torch.allclose(by_gradient["b"], torch.full((2, 2), 0.2))
    assert torch.allclose(by_sign["a"], torch.full((3,), 0.9))
    assert torch.allclose(by_sign["b"], torch.full((2, 2), 0.1))


@pytest.mark.parametrize("settings", [ADAMW, SGD], ids=lambda s: s.optimizer)
def test_without_a_gradient_nothing_decays(settings: TrainerSettings) -> None:
    parameters = start()
    step(make_optimizer(parameters, settings), parameters, {"a": 0.0, "b": 0.0})
    assert (parameters["a"] == 1.0).all()


def test_equal_state_is_equal_bytes(tmp_path: Path) -> None:
    shas = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        parameters = start()
        optimizer = make_optimizer(parameters, ADAMW)
        step(optimizer, parameters, GRADIENTS[0])
        save_state(folder, optimizer, parameters, 1, "sha")
        shas.append(state_sha(folder))
    assert shas[0] == shas[1]


def test_the_state_of_an_older_version_is_read(tmp_path: Path) -> None:
    """It also held the state of torch's generator, from which nothing was drawn."""
    parameters = saved(tmp_path / "state")
    file = tmp_path / "state" / "optimizer.safetensors"
    save_file({**load_file(file), "rng": torch.get_rng_state()}, file)
    anew = make_optimizer(parameters, ADAMW)
    assert load_state(tmp_path / "state", anew, parameters, "sha") == 1
    assert (anew.state[parameters["a"]]["exp_avg"] != 0).all()


def saved(folder: Path) -> dict[str, Parameter]:
    parameters = start()
    optimizer = make_optimizer(parameters, ADAMW)
    step(optimizer, parameters, GRADIENTS[0])
    save_state(folder, optimizer, parameters, 1, "sha")
    return parameters


def test_the_state_of_another_adapter_is_refused(tmp_path: Path) -> None:
    parameters = saved(tmp_path / "state")
    with pytest.raises(BadInput, match="the state of adapter sha, but the initial adapter is oth"):
        load_state(tmp_path / "state", make_optimizer(parameters, ADAMW), parameters, "other")


def test_a_missing_or_strange_tensor_is_named(tmp_path: Path) -> None:
    parameters = saved(tmp_path / "state")
    more = parameters | {"c": Parameter(torch.zeros(1))}
    with pytest.raises(BadInput, match=r"exp_avg\.c is missing"):
        load_state(tmp_path / "state", make_optimizer(more, ADAMW), more, "sha")
    del parameters["a"]
    with pytest.raises(BadInput, match=r"exp_avg\.a belongs to no LoRA tensor"):
        load_state(tmp_path / "state", make_optimizer(parameters, ADAMW), parameters, "sha")


def test_another_shape_is_named(tmp_path: Path) -> None:
    parameters = saved(tmp_path / "state")
    parameters["a"] = Parameter(torch.ones(5))
    with pytest.raises(BadInput, match=r"exp_avg\.a has another shape"):
        load_state(tmp_path / "state", make_optimizer(parameters, ADAMW), parameters, "sha")


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    parameters = saved(tmp_path / "state")
    with pytest.raises(BadInput, match=r"exp_avg\.a belongs to no LoRA tensor or optimizer here"):
        load_state(tmp_path / "state", make_optimizer(parameters, SGD), parameters, "sha")


def test_an_optimizer_is_one_entry_of_the_registry(
    request: pytest.FixtureRequest,
    bundle: Path,
    adapter: Path,
    reference: Path,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    """From outside the package: settings know it, errors and documentation list it, and a step is
    taken with it whose state goes on."""

    def rmsprop(parameters: Iterable[Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(parameters, lr=lr)

    kind = OptimizerKind(rmsprop, "divides by a running mean of squares", keeps=("square_avg",))
    OPTIMIZERS.register("rmsprop", kind)
    request.addfinalizer(lambda: OPTIMIZERS.remove("rmsprop"))
    settings = TrainerSettings(optimizer="rmsprop", lr=0.01, dtype="fp32")
    inputs = StepInputs(bundle, adapter, reference, tiny_model, None, tmp_path / "step")
    result = train(inputs, settings, Lines(StringIO()))
    assert result["train"]["delta_max_abs"] == pytest.approx(0.1, rel=1e-3)  # lr / sqrt(1 - 0.99)
    kept = load_file(tmp_path / "step" / "trainer_state" / "optimizer.safetensors")
    assert kept
    assert all(name.startswith("square_avg.") for name in kept)

    assert settings.step_norm is None
    with pytest.raises(BadInput, match="one of 'adamw', 'sgd', 'rmsprop', found 'rmspro'; did you"):
        TrainerSettings(optimizer="rmspro")
    page = "\n".join(settings_lines(TrainerSettings))
    assert '- `optimizer = "rmsprop"`: divides by a running mean of squares' in page


def test_step_norm_bounds_what_a_step_moves(
    bundle: Path, adapter: Path, reference: Path, tiny_model: Path, tmp_path: Path
) -> None:
    settings = TrainerSettings(optimizer="sgd", lr=4.0, clip_norm=0.03, dtype="fp32")
    assert settings.step_norm == pytest.approx(0.12)
    inputs = StepInputs(bundle, adapter, reference, tiny_model, None, tmp_path / "step")
    figures = train(inputs, settings, Lines(StringIO()))["train"]
    assert figures["grad_norm"] > settings.clip_norm
    assert figures["delta_l2"] == pytest.approx(settings.step_norm, rel=1e-4)


def test_step_norm_bounds_what_all_passes_of_a_step_move(
    bundle: Path, adapter: Path, reference: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """Each of two passes moves by 4 × 0.03. They point almost the same way, so both together move
    by more than one and by no more than the sum."""
    settings = TrainerSettings(optimizer="sgd", lr=4.0, clip_norm=0.03, dtype="fp32", passes=2)
    assert settings.step_norm == pytest.approx(0.24)
    inputs = StepInputs(bundle, adapter, reference, tiny_model, None, tmp_path / "step")
    figures = train(inputs, settings, Lines(StringIO()))["train"]
    assert 0.13 < figures["delta_l2"] <= 0.24 * (1 + 1e-4)


def test_a_learning_rate_that_decays_shortens_the_steps_after_its_step(
    adapter: Path, reference: Path, tiny_model: Path, tmp_path: Path
) -> None:
    settings = TrainerSettings(optimizer="sgd", lr=4.0, clip_norm=0.03, dtype="fp32", decay_after=4)
    assert settings.at_step(4) is settings
    lengths = {}
    for step in (1, 4, 16):
        rng = random.Random(7)
        group = replace(make_group(rng, adapter_sha(adapter)), step=step)
        bundle = write_bundle(tmp_path / f"bundle-{step}.jsonl", [group])
        inputs = StepInputs(bundle, adapter, reference, tiny_model, None, tmp_path / f"step-{step}")
        figures = train(inputs, settings, Lines(StringIO()))["train"]
        assert figures["lr"] == settings.at_step(step).lr
        lengths[step] = figures["delta_l2"]
    assert lengths[1] == lengths[4] == pytest.approx(0.12, rel=1e-4)
    assert lengths[16] == pytest.approx(0.06, rel=1e-4)
