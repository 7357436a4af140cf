"""The trainer that the third document describes, rebuilt plainly: what most people would write.

Each step loads the model; one episode at a time goes through it; the logits of every position and
every word of the vocabulary are made, in float32, for the policy and for the reference; then one
optimizer step. Its loss is the trainer's: tests hold both gradients to be the same. As a program it
is a whole step, from loading to the saved adapter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from fieldkit.codec import read_bundle
from trainer.batch import Segment, TrainingBatch, collect
from trainer.scoring.policy import pick_device, serving_dtype, training_dtype
from trainer.settings import TrainerSettings, read_settings


def now() -> float:
    """Seconds of a clock, read when the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def load(model: Path, adapter: Path, dtype: torch.dtype) -> Any:
    """The base with its trainable adapter, as peft makes it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    policy = PeftModel.from_pretrained(base.to(pick_device()), str(adapter), is_trainable=True)
    return policy.eval()  # without dropout: a ratio to the sampler must not be random


def trained(policy: Any) -> dict[str, torch.nn.Parameter]:
    """The adapter's parameters by name."""
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def logprobs(policy: Any, segment: Segment, temperature: float) -> Tensor:
    """Logprobs of a segment's sampled ids, from the logits of all positions and words."""
    ids = torch.tensor([segment.ids], device=policy.device)
    logits: Tensor = policy(input_ids=ids).logits[0, :-1].float() / temperature
    of_targets = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    positions = [p - 1 for s in segment.spans for p in range(s.start, s.start + s.length)]
    return of_targets[torch.tensor(positions, device=policy.device)]


def passes(
    policy: Any, reference: dict[str, Tensor], batch: TrainingBatch, settings: TrainerSettings
) -> tuple[float, float]:
    """Add the gradient episode by episode; seconds of the reference's and the policy's passes."""
    reference_seconds = gradient_seconds = 0.0
    parameters = trained(policy)
    for segment in batch.segments:
        began = now()
        own = {name: p.detach().clone() for name, p in parameters.items()}
        with torch.no_grad():
            _copy(reference, parameters)
            under_reference = logprobs(policy, segment, settings.temperature)
            _copy(own, parameters)
        middle = now()
        under_policy = logprobs(policy, segment, settings.temperature)
        sampled = torch.tensor(segment.sampler_logprobs, device=policy.device)
        ratio = (under_policy.detach() - sampled).exp()
        advantages = torch.tensor(segment.advantages, device=policy.device)
        weighted = ratio.clamp(max=settings.tis_cap) * advantages
        apart = under_reference - under_policy
        kl = apart.exp() - apart - 1
        loss = (-(weighted * under_policy) + settings.kl_coef * kl).sum() / batch.n_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        reference_seconds += middle - began
        gradient_seconds += now() - middle
    return reference_seconds, gradient_seconds


def _copy(source: dict[str, Tensor], parameters: dict[str, torch.nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(source[name])


def timed(
    model: Path, adapter: Path, batch: TrainingBatch, settings: TrainerSettings, dtype: torch.dtype
) -> dict[str, Any]:
    """Seconds of both passes over a bundle, loading and the first segment left out."""
    policy = load(model, adapter, dtype)
    reference = {name: p.detach().clone() for name, p in trained(policy).items()}
    passes(policy, reference, replace(batch, segments=batch.segments[-1:]), settings)
    policy.zero_grad()
    of_reference, of_gradient = passes(policy, reference, batch, settings)
    return {
        "reference_seconds": of_reference,
        "gradient_seconds": of_gradient,
        "gradient_norm": gradient_norm(trained(policy).values()),
    }


def gradient_norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    """L2 over all of them."""
    flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    return float(torch.linalg.vector_norm(flat))


def main(
    model: Annotated[Path, typer.Option(help="Model folder.")],
    adapter: Annotated[Path, typer.Option(help="The adapter that sampled the bundle.")],
    bundle: Annotated[Path, typer.Option(help="trajectory_bundle.jsonl of a step.")],
    settings_json: Annotated[Path, typer.Option(help="[trainer] as a JSON object.")],
    out: Annotated[Path, typer.Option(help="Gets the new adapter.")],
) -> None:
    """One whole step: load, both passes, one step of the optimizer, save."""
    settings = read_settings(settings_json)
    batch = collect(read_bundle(bundle), settings)
    dtype = training_dtype(settings.dtype, serving_dtype(settings.serving_dtype, model))
    policy = load(model, adapter, dtype)
    parameters = trained(policy)
    reference = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=settings.lr)
    passes(policy, reference, batch, settings)
    torch.nn.utils.clip_grad_norm_(parameters.values(), settings.clip_norm)
    optimizer.step()
    policy.save_pretrained(str(out))


if __name__ == "__main__":
    typer.run(main)
