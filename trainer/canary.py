"""The canary of an adapter: the logprobs that a server gives if it really serves this one.

A server may hold the base, an older adapter or a broken one under the right name and answer 200. So
the logprobs of a few fixed sequences are computed with the weights that the server has (all rounded
to the serving dtype), with the size of its rounding. Nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from fieldkit.errors import BadInput
from fieldkit.gate.memory import available
from fieldkit.records import RolloutGroup
from fieldkit.training.adapter import check_adapter
from fieldkit.training.canary_record import Canary, Rows, write_canary
from fieldkit.training.snapshot import LoraReferenceSnapshot
from trainer.batch import Segment, Span
from trainer.scoring.micro_batch import tensors
from trainer.scoring.policy import Policy, dtype_name, load_policy, serving_dtype

SEQUENCES = 4
TOKENS_EACH = 96
PROMPT_LEN = 1
"""Logprobs are listed from this position on: every id but the first, which nothing predicts."""

NOISE_FLOOR = 1e-6
"""Resolution of a float32 logprob of size ~10 (2^-24 relative): below it a difference is none."""

_MEMORY_SHARE = 0.5  # of what is available, that weights in float32 may take


def canary_ids(groups: Sequence[RolloutGroup]) -> list[list[int]]:
    """The end of an episode of each of the first groups: of its last prompt + completion. One that
    ended before its first turn has none."""
    played = [[t.turns[-1] for t in g.trajectories if t.turns] for g in groups]
    return _ends([turns[0].prompt_ids + turns[0].completion_ids for turns in played if turns])


def _ends(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """The first id and the last ones of the first sequences in which they differ. The first one,
    because some models need their beginning-of-text; the last ones, because prompts begin with the
    same system message, and because training moves completions most."""
    long = [ids for ids in sequences if len(ids) > PROMPT_LEN]
    ends = dict.fromkeys((ids[0], *ids[1:][1 - TOKENS_EACH :]) for ids in long)
    return [list(ids) for ids in ends][:SEQUENCES]


def make_canary(
    policy: Policy,
    ids: Sequence[Sequence[int]],
    previous: LoraReferenceSnapshot | None,
    dtype: torch.dtype,
    *,
    adapter_sha: str,
    parent_sha: str | None,
    beside: int = 1,
) -> Canary:
    """The canary of the live adapter; `previous`: its parent's values, None without one.

    beside: processes on this machine that make one at the same time.

    The policy's weights (loaded in `dtype` or float32) are rounded to `dtype` meanwhile, adapter
    included, as the server has them. Where that is a narrow one they are computed with in float32,
    if the memory is there: adapters one step apart differ by less than the narrow one's rounding.
    """
    before = None
    with policy.converted(dtype):
        rounded = _score(policy, ids)
        narrow = dtype != torch.float32 and not policy.is_sharded
        exact = narrow and _float32_fits(policy, beside)
        with policy.in_float32() if exact else nullcontext():
            new = _score(policy, ids) if exact else rounded
            with policy.without_adapter():
                base = _score(policy, ids)
            if previous is not None:
                with previous.to(dtype):
                    before = _score(policy, ids)
        noise = _noise(policy, ids, rounded, new if exact else None)
    return Canary(
        adapter_sha=adapter_sha,
        parent_sha=parent_sha,
        dtype=dtype_name(dtype),
        ids=tuple(tuple(i) for i in ids),
        prompt_len=PROMPT_LEN,
        base=base,
        previous=before,
        new=new,
        noise=noise,
        exact=exact,
    )


def prove_adapter(
    adapter: Path,
    model_dir: Path,
    ids: Sequence[Sequence[int]],
    *,
    serving: str = "auto",
    previous: Path | None = None,
) -> Canary:
    """Write canary.json for an adapter from elsewhere, and return it.

    ids: token sequences (a few prompts) of the model's own tokenizer. serving: the server's dtype.
    previous: the adapter that a server might hold instead, where there is one.
    Raises `BadInput` for an adapter that does not fit the model.
    """
    info = check_adapter(adapter, model_dir)
    short = _ends(ids)
    if not short:
        raise BadInput(f"{adapter}: a canary needs a sequence of more than {PROMPT_LEN} ids")
    dtype = serving_dtype(serving, model_dir)
    policy = load_policy(model_dir, info, dtype, gradient_checkpointing=False)
    parent = check_adapter(previous, model_dir) if previous else None
    snapshot = LoraReferenceSnapshot.from_disk(policy.model, parent.path) if parent else None
    parent_sha = parent.sha if parent else None
    canary = make_canary(
        policy, short, snapshot, dtype, adapter_sha=info.sha, parent_sha=parent_sha
    )
    write_canary(adapter, canary)
    return canary


def _score(policy: Policy, ids: Sequence[Sequence[int]]) -> Rows:
    """Logprobs of ids[i][PROMPT_LEN:]."""
    segments = [_segment(sequence) for sequence in ids]
    with torch.no_grad():
        batch = tensors(segments, policy.device, shared=False)
        logprobs_n, _ = policy.logprobs(batch, temperature=1.0)
    parts = torch.split(logprobs_n, [segment.n_trained for segment in segments])
    return tuple(tuple(part.tolist()) for part in parts)


def _segment(ids: Sequence[int]) -> Segment:
    n = len(ids) - PROMPT_LEN
    none = (0.0,) * n
    span = Span(turn=0, start=PROMPT_LEN, length=n)
    return Segment("canary", 0, tuple(ids), (span,), none, none, none)


def _noise(
    policy: Policy, ids: Sequence[Sequence[int]], rounded: Rows, exact: Rows | None
) -> float:
    """Mean |Δ logprob| that rounding alone makes.

    Against the same weights in float32: that is the error of the serving dtype itself. Without
    these between two attention kernels, which is less than what separates two programs, but never
    nothing.
    """
    other = exact
    if other is None:
        with policy.attention("eager"):
            other = _score(policy, ids)
    pairs = [(a, b) for x, y in zip(rounded, other, strict=True) for a, b in zip(x, y, strict=True)]
    return max(NOISE_FLOOR, sum(abs(a - b) for a, b in pairs) / len(pairs))


def _float32_fits(policy: Policy, beside: int) -> bool:
    if policy.device.type == "cuda":
        torch.cuda.empty_cache()  # what the gradient's blocks hold counts as taken
    now = available()
    gpu = now.gpu if policy.device.type == "cuda" else None
    room = now.host // beside if gpu is None else gpu
    return policy.float32_bytes < _MEMORY_SHARE * room
