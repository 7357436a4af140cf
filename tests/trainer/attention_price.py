"""`python -m tests.trainer.attention_price`: attention by PyTorch's kernel and written out.

Both in bfloat16 on random values of the default model's shape (9 heads, 3 of keys, 64 numbers
each), by turns. Prints medians of a forward and of a backward pass in milliseconds, and how far
output and gradients are from float64's, relative to their norms.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Annotated

import torch
import typer

from scripts.words.table import Table
from tests.trainer.scoring.test_cpu_attention import (
    Attention,
    Four,
    apart,
    by_pytorch,
    drawn,
    with_gradients,
)
from trainer.scoring.cpu_attention import attention
from trainer.scoring.onednn import by_onednn

HEADS, KEY_HEADS, WIDTH = 9, 3, 64
LENGTHS = ((250, 250), (200, 330), (60, 330), (400, 600))
"""Queries of a sequence, and its positions with the prompt that it shares."""
KINDS: dict[str, Attention] = {"PyTorch's kernel": by_pytorch, "written out": attention}


def main(rounds: Annotated[int, typer.Option(min=1, help="Of each.")] = 40) -> None:
    """Measure both in every length."""
    rows = []
    for queries, positions in LENGTHS:
        four = drawn(queries, positions, heads=HEADS, key_heads=KEY_HEADS, width=WIDTH)
        exact = with_gradients(by_pytorch, four, torch.float64)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in KINDS}
        for _ in range(rounds):
            for name in KINDS:
                with by_onednn():  # as in a pass; PyTorch's kernel does not ask for it
                    taken[name].append(_seconds(name, four))
        for name, seconds in taken.items():
            there, back = (1000 * statistics.median(times) for times in zip(*seconds, strict=True))
            errors = apart(with_gradients(KINDS[name], four, torch.bfloat16), exact)
            found = " ".join(f"{error:.1e}" for error in errors)
            rows.append((f"{queries} of {positions}", name, f"{there:.2f}", f"{back:.2f}", found))
    columns = ("queries of positions", "attention", "forward, ms", "backward, ms", "errors")
    print(Table("Attention", columns, tuple(rows)).markdown())
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")


def _seconds(name: str, four: Four) -> tuple[float, float]:
    query, key, value = (x.clone().requires_grad_() for x in four[:3])
    began = time.perf_counter()
    out = KINDS[name](query, key, value, WIDTH**-0.5)
    between = time.perf_counter()
    torch.autograd.grad(out, (query, key, value), four[3])
    return between - began, time.perf_counter() - between


if __name__ == "__main__":
    typer.run(main)
