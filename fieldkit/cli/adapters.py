"""`fieldkit delta` and `fieldkit check`: how an adapter changed, and whether it fits a model."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.cli.columns import show
from fieldkit.errors import BadInput, Unavailable

_DTYPES = ("bfloat16", "float16", "float32")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def delta(
    before: Annotated[Path, typer.Argument(metavar="A", help="Adapter folder or safetensors file")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The same after training")],
    dtype: Annotated[
        str, typer.Option(help=f"How a server holds the weights: {', '.join(_DTYPES)}")
    ] = "bfloat16",
    layers: Annotated[bool, typer.Option("--layers", help="One row for each tensor")] = False,
    as_json: Json = False,
) -> None:
    """Show how far the weights of B are from those of A, and what a server will see of it."""
    if dtype not in _DTYPES:
        raise BadInput(f"--dtype: {dtype!r} is unknown; use one of {', '.join(_DTYPES)}")
    try:
        import torch
    except ModuleNotFoundError:
        raise Unavailable(
            "fieldkit delta needs torch, which this environment lacks: `pip install torch`, or use "
            "fieldkit from the environment that trains"
        ) from None

    from fieldkit.training.tensors import load_tensors
    from fieldkit.training.weight_delta import weight_delta

    served = getattr(torch, dtype)
    old, new = load_tensors(_weights(before)), load_tensors(_weights(after))
    found = {"all": weight_delta(old, new, served)}
    if layers:
        found |= {n: weight_delta({n: old[n]}, {n: new[n]}, served) for n in sorted(old)}
    rows = [("tensor", "L2", "max|Δ|", f"L2 as {dtype}", "survives")]
    for name, moved in found.items():
        l2, largest, served_l2 = (f"{f:.6g}" for f in (moved.l2, moved.max_abs, moved.served_l2))
        rows.append((name, l2, largest, served_l2, f"{moved.served_changed:.1%}"))
    facts = {name: dataclasses.asdict(moved) for name, moved in found.items()}
    show(rows, {"dtype": dtype, "tensors": facts}, as_json=as_json)


def check(
    adapter: Annotated[Path, typer.Argument(help="Adapter folder in peft's layout")],
    base: Annotated[Path, typer.Option(help="Folder of the model that it is for")],
    as_json: Json = False,
) -> None:
    """Check an adapter key by key against a model: names, shapes, finite values."""
    from fieldkit.training.adapter import check_adapter, is_quantised, other_base

    info = check_adapter(adapter, base)
    rows = [
        (str(adapter), "fits"),
        ("rank", str(info.rank)),
        ("alpha", f"{info.alpha:g}"),
        ("targets", ", ".join(info.target_modules)),
        ("sha", info.sha),
    ]
    facts = {**dataclasses.asdict(info), "path": str(adapter), "base": str(base)}
    show(rows, facts, as_json=as_json)
    if named := other_base(info, str(base)):
        bits = ", which has fewer bits" if is_quantised(named, str(base)) else ""
        print(f"note: the adapter says that it was trained on {named}{bits}", file=sys.stderr)


def _weights(path: Path) -> Path:
    from fieldkit.training.adapter import WEIGHTS_FILE

    return path / WEIGHTS_FILE if path.is_dir() else path
