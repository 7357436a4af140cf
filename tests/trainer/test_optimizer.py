"""The optimizer's state on disk is that in memory: a run that stops in between is the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

from fieldkit.errors import BadInput
from trainer.checkpoint import state_sha, state_steps
from trainer.optimizer import load_state, make_optimizer, save_state
from trainer.settings import TrainerSettings

ADAMW = TrainerSettings(optimizer="adamw", lr=0.1)
SGD = TrainerSettings(optimizer="sgd", lr=0.1)
GRADIENTS = [{"a": 0.5, "b": -2.0}, {"a": -0.1, "b": 3.0}, {"a": 0.7, "b": 0.2}]


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
        torch.manual_seed(0)
        parameters = start()
        optimizer = make_optimizer(parameters, ADAMW)
        step(optimizer, parameters, GRADIENTS[0])
        save_state(folder, optimizer, parameters, 1, "sha")
        shas.append(state_sha(folder))
    assert shas[0] == shas[1]


def test_the_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    parameters = start()
    optimizer = make_optimizer(parameters, ADAMW)
    step(optimizer, parameters, GRADIENTS[0])
    save_state(tmp_path / "state", optimizer, parameters, 1, "sha")
    expected = torch.rand(3)
    torch.manual_seed(99)
    load_state(tmp_path / "state", make_optimizer(parameters, ADAMW), parameters, "sha")
    assert torch.equal(torch.rand(3), expected)


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
