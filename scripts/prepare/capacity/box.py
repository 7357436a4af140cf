"""A box: what a data sheet or a measurement says of its devices, and where each figure is from.

A shipped box is one file of `boxes/`; a person's own is such a file anywhere. Nothing is predicted
here.
"""

from __future__ import annotations

import tomllib
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
from pydantic import FiniteFloat

from fieldkit.errors import BadInput, MissingFile
from fieldkit.registry import nearest
from fieldkit.settings import Unit, read, settings
from scripts.base.checkout import from_home

SHIPPED = Path(__file__).with_name("boxes")

Share = Annotated[FiniteFloat, Gt(0), Le(1)]
MOST, MOST_COUNT = 1e9, 100_000
"""Of a figure, and of a number of devices or machines."""
Figure = Annotated[FiniteFloat, Ge(1e-6), Le(MOST)]
Seconds = Annotated[FiniteFloat, Ge(0), Le(MOST)]
Count = Annotated[int, Ge(1), Le(MOST_COUNT)]

GIGA = 1e9

GPU_TFLOPS = 20.0
"""From so many on, a device counts as a GPU. The processors of docs/PERFORMANCE.md and
docs/PERFORMANCE-amx.md reach 0.4 and 2.5, the slowest GPU of `boxes/` 88."""


@settings("box")
class Box:
    """One or several equal machines behind one run. The first one runs the loop, trains and serves;
    the others only serve (`engine.urls`). A device is a GPU, or on a CPU all of its cores."""

    title: str
    """What it is, in words."""
    tflops: Annotated[Figure, Unit("TFLOP/s")]
    """bfloat16 matrix products of one device, dense."""
    memory_gb_s: Annotated[Figure, Unit("GB/s")]
    """Memory bandwidth of one device."""
    memory_gb: Annotated[Figure, Unit("GB")]
    """Memory of one device; on a machine with one memory for all, that memory."""
    matmul_share: Share = 0.7
    """Share of `tflops` that large matrix products reach; 1 where `tflops` was measured so."""
    reference_share: Share | None = None
    """Share of those products' FLOP/s that the trainer's reference pass reaches. Left out: what it
    reaches on the machine whose steps were fitted."""
    gradient_share: Share | None = None
    """The same of forward and backward."""
    bandwidth_share: Share = 0.6
    """Share of `memory_gb_s` that decoding reaches; 1 where `memory_gb_s` was measured so."""
    devices: Count = 1
    """Devices of one machine."""
    machines: Count = 1
    """Machines."""
    iteration_ms: Annotated[Seconds, Unit("ms")] = 5.0
    """The engine's own time for each decode iteration, beside the model's."""
    disk_gb_s: Annotated[Figure, Unit("GB/s")] = 2.0
    """At which a model's weights are loaded."""
    start_seconds: Annotated[Seconds, Unit("s")] = 60.0
    """An engine's start, without its weights."""
    link_gb_s: Annotated[Figure, Unit("GB/s")] = 0.125
    """Network between the machines."""
    sources: dict[str, str] = field(default_factory=dict)
    """Key → where its figure is from."""

    @property
    def n_devices(self) -> int:
        return self.devices * self.machines

    @property
    def is_gpu(self) -> bool:
        """Whether a device is one, or as fast as one."""
        return self.tflops >= GPU_TFLOPS

    @property
    def flops(self) -> float:
        """FLOP/s of large matrix products on one device."""
        return self.tflops * 1e12 * self.matmul_share

    @property
    def bandwidth(self) -> float:
        """Bytes a second that decoding can read on one device."""
        return self.memory_gb_s * GIGA * self.bandwidth_share

    def twice(self, key: str) -> Box:
        """The box with twice of one figure."""
        value = getattr(self, key)
        most = MOST_COUNT if isinstance(value, int) else MOST
        changed: dict[str, Any] = {key: min(2 * value, most)}
        return replace(self, **changed)

    def __post_init__(self) -> None:
        if unknown := [key for key in self.sources if key not in self.__dataclass_fields__]:
            hint = nearest(unknown[0], self.__dataclass_fields__)
            raise BadInput(
                f"box.sources: {unknown[0]!r} is no key of a box"
                + (f"; did you mean {hint!r}?" if hint else "")
            )


def shipped_boxes() -> dict[str, Path]:
    """The boxes that have a name, by it."""
    return {file.stem: file for file in sorted(SHIPPED.glob("*.toml"), key=lambda file: file.stem)}


def read_box(file: Path) -> Box:
    """A box of a file with one table, [box]. Raises `BadInput` naming file and key."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFile(
            f"{file}: no such file; copy {shipped_boxes()['h100']} and write your box's figures"
        ) from None
    except UnicodeDecodeError as e:
        raise BadInput(f"{file}: not UTF-8 ({e})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise BadInput(f"{file}: not TOML ({e})") from None
    if unknown := [key for key in table if key != "box"]:
        raise BadInput(f"{file}: unknown key {unknown[0]!r}; a box is one table, written [box]")
    values = table.get("box")
    if not isinstance(values, dict):
        raise BadInput(f"{file}: a box is one table, written [box]")
    return read(Box, values, str(file))


def named_box(name: str) -> Box:
    """A box by its name, or by its file, which ends in .toml. Raises `BadInput`."""
    known = shipped_boxes()
    if name in known:
        return read_box(known[name])
    if name.endswith(".toml"):
        return read_box(from_home(name))
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else "."
    raise BadInput(
        f"--box {name}: unknown{hint} Known: {', '.join(known)}; a box of your own is a file, as in"
        " my-box.toml"
    )
