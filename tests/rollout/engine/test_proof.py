"""The canary: which weights answer, told from their logprobs, or said to be beyond telling."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from fieldkit.errors import Unavailable
from fieldkit.training.canary_record import Canary
from rollout.engine.proof import Verdict, judge

SEQUENCES, LENGTH = 4, 95
NOISE = 0.008  # mean |sampler - trainer| a token in bf16, as measured
RNG = random.Random(11)


def rows(draw: Callable[[], float]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(draw() for _ in range(LENGTH)) for _ in range(SEQUENCES))


def shifted(values: tuple[tuple[float, ...], ...], size: float) -> tuple[tuple[float, ...], ...]:
    """Each value moved by a normal amount of that standard deviation."""
    return tuple(tuple(v + RNG.gauss(0.0, size) for v in row) for row in values)


def canary(
    change: float, from_base: float = 0.5, noise: float = NOISE, exact: bool = False
) -> Canary:
    """A canary whose new adapter differs from the previous by `change` a token."""
    base = rows(lambda: -RNG.uniform(0.5, 5.0))
    previous = shifted(base, from_base)
    return Canary(
        adapter_sha="new",
        parent_sha="old",
        dtype="bfloat16",
        ids=tuple((i, *range(LENGTH)) for i in range(SEQUENCES)),
        prompt_len=1,
        base=base,
        previous=previous,
        new=shifted(previous, change),
        noise=noise,
        exact=exact,
    )


def test_the_new_adapter_is_proven() -> None:
    c = canary(change=0.05)
    proof = judge(c, shifted(c.new, NOISE), "run-v1")
    assert proof.verdict is Verdict.PROVEN
    assert proof.mean_abs == pytest.approx(NOISE, rel=0.5)


def test_a_change_of_a_few_noises_a_token_is_proven_over_many() -> None:
    c = canary(change=NOISE, noise=NOISE / 4)
    assert judge(c, shifted(c.new, NOISE / 4), "run-v1").verdict is Verdict.PROVEN


def test_the_previous_adapter_under_the_new_name_is_found_out() -> None:
    c = canary(change=0.05)
    assert c.previous is not None
    with pytest.raises(Unavailable, match="run-v1: the server answers with the previous adapter"):
        judge(c, shifted(c.previous, NOISE), "run-v1")


def test_the_base_model_under_the_adapters_name_is_found_out() -> None:
    c = canary(change=0.05)
    with pytest.raises(Unavailable, match="run-v1: the server answers with the base model"):
        judge(c, shifted(c.base, NOISE), "run-v1")


def test_weights_that_are_none_of_the_three_are_found_out() -> None:
    c = canary(change=0.05)
    with pytest.raises(Unavailable, match="not the adapter's"):
        judge(c, shifted(c.new, 2.0), "run-v1")


def test_a_change_below_the_noise_cannot_be_told_and_is_said_so() -> None:
    c = canary(change=1e-4)
    proof = judge(c, shifted(c.new, NOISE), "run-v1")
    assert proof.verdict is Verdict.INDISTINGUISHABLE
    assert "the previous adapter" in proof.detail
    assert "the base model" not in proof.detail
    line = f"{proof.verdict.told}: {proof.detail}"
    assert line.startswith("is loaded, and known by its name and hash alone: its answers are as")


def test_exact_logprobs_prove_a_change_that_is_within_the_servers_rounding() -> None:
    for _ in range(20):
        c = canary(change=NOISE, exact=True)
        assert judge(c, shifted(c.new, NOISE), "run-v1").verdict is Verdict.PROVEN


def test_exact_logprobs_find_out_the_adapter_of_the_step_before() -> None:
    for _ in range(20):
        c = canary(change=NOISE, exact=True)
        assert c.previous is not None
        with pytest.raises(Unavailable, match=r"previous adapter.* lie towards the previous"):
            judge(c, shifted(c.previous, NOISE), "run-v1")


@pytest.mark.parametrize("change", [0.0, 1e-4, NOISE / 4, NOISE])
def test_exact_logprobs_accuse_no_right_server_however_it_rounds(change: float) -> None:
    for size in (NOISE / 10, NOISE, 10 * NOISE):
        for _ in range(50):
            c = canary(change, exact=True)
            judge(c, shifted(c.new, size), "run-v1")


@pytest.mark.parametrize("lean", [0.1, 0.4])
def test_a_rounding_that_leans_to_a_rival_by_less_than_half_the_step_proves_nothing(
    lean: float,
) -> None:
    c = canary(change=0.0, exact=True)
    raised = tuple(tuple(v + NOISE for v in row) for row in c.new)
    leaning = tuple(tuple(v + lean * NOISE for v in row) for row in c.new)
    proof = judge(replace(c, previous=raised), leaning, "run-v1")
    assert proof.verdict is Verdict.INDISTINGUISHABLE
    assert "lie between its own and those of the previous adapter" in proof.detail


@pytest.mark.parametrize("exact", [False, True])
def test_an_adapter_of_which_a_quarter_is_loaded_is_found_out(exact: bool) -> None:
    c = replace(canary(change=0.05, from_base=0.2, exact=exact), previous=None)
    pairs = zip(c.base, c.new, strict=True)
    part = tuple(tuple(b + (n - b) / 4 for b, n in zip(*rows, strict=True)) for rows in pairs)
    with pytest.raises(Unavailable, match="the server answers with the base model"):
        judge(c, shifted(part, NOISE), "run-v1")


def test_an_adapter_that_is_a_fifth_too_weak_is_not_proven() -> None:
    c = replace(canary(change=0.05, from_base=0.2, exact=True), previous=None)
    pairs = zip(c.base, c.new, strict=True)
    part = tuple(tuple(n + (b - n) / 5 for b, n in zip(*rows, strict=True)) for rows in pairs)
    proof = judge(c, shifted(part, NOISE), "run-v1")
    assert proof.verdict is Verdict.INDISTINGUISHABLE
    assert "lie between its own and those of the base model" in proof.detail


def test_a_change_that_rounding_alone_explains_accuses_no_server() -> None:
    """new and previous carry the trainer's rounding, and the server has another of its own."""
    for _ in range(200):
        c = canary(change=0.002)
        assert c.previous is not None
        served = shifted(c.new, 2 * NOISE)
        c = replace(c, new=shifted(c.new, NOISE), previous=shifted(c.previous, NOISE))
        proof = judge(c, served, "run-v1")
        assert proof.verdict is Verdict.INDISTINGUISHABLE


def test_noise_that_is_largest_where_the_adapters_differ_most_accuses_no_server() -> None:
    """A few unlikely tokens move most, by training and by rounding alike."""
    for _ in range(200):
        c = canary(change=0.0)
        wild = [[RNG.random() < 0.02 for _ in range(LENGTH)] for _ in range(SEQUENCES)]
        new, previous, served = (
            tuple(
                tuple(v + RNG.gauss(0.0, 0.4 if w else NOISE) for v, w in zip(row, ws, strict=True))
                for row, ws in zip(c.new, wild, strict=True)
            )
            for _ in range(3)
        )
        judge(replace(c, new=new, previous=previous), served, "run-v1")


def test_a_beginning_that_all_sequences_share_is_one_witness_and_not_four() -> None:
    """A right server whose rounding lies towards the previous adapter in 13 of 16 tokens, 1 %."""
    c = canary(change=0.05)
    assert c.previous is not None
    short = slice(0, 16)
    new, previous = c.new[0][short], c.previous[0][short]
    towards = [0.6 if i < 13 else 0.4 for i in range(16)]
    got = [n + s * (p - n) for n, p, s in zip(new, previous, towards, strict=True)]

    def alike(row: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
        return (row[short],) * SEQUENCES

    same = replace(
        c,
        ids=(tuple(range(17)),) * SEQUENCES,
        base=alike(c.base[0]),
        previous=(previous,) * SEQUENCES,
        new=(new,) * SEQUENCES,
        noise=0.0,
    )
    proof = judge(same, [got] * SEQUENCES, "run-v1")
    assert proof.verdict is Verdict.INDISTINGUISHABLE
    assert "over 16 tokens" in proof.detail
    apart = replace(same, ids=tuple((i, *range(16)) for i in range(SEQUENCES)))
    with pytest.raises(Unavailable, match="of 64 tokens that tell them apart 52 lie towards"):
        judge(apart, [got] * SEQUENCES, "run-v1")


def test_an_adapter_equal_to_its_parent_cannot_be_told_from_it() -> None:
    c = canary(change=0.0)
    assert judge(c, c.new, "run-v1").verdict is Verdict.INDISTINGUISHABLE


def test_an_adapter_without_a_parent_is_held_against_the_base_alone() -> None:
    c = canary(change=0.05)
    orphan = Canary(**{**vars(c), "previous": None, "parent_sha": None})
    assert judge(orphan, shifted(c.new, NOISE), "run-v0").verdict is Verdict.PROVEN
    with pytest.raises(Unavailable, match="the base model"):
        judge(orphan, shifted(c.base, NOISE), "run-v0")
