"""docs/scale-figures.md: what `make test-scale` found, in tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]

MIB, GIB = 2**20, 2**30


def page(found: Found) -> str:
    """The whole page. Keys are those of docs/scale-figures.json, before or after it was written."""
    return "\n".join([*_head(found), *_run(found["run"]), *_others(found)]).rstrip() + "\n"


def _head(found: Found) -> Iterator[str]:
    machine, versions = found["machine"], found["versions"]
    yield "# Scale: everything beside the model"
    yield ""
    yield (
        f"Measured by `make test-scale` in {found['seconds'] / 60:.0f} minutes on"
        f" {machine['cores']} cores of {machine['cpu']} with"
        f" {machine['memory_bytes'] / GIB:.0f} GiB, Python {versions['python']}, kernel"
        f" {versions['kernel']}, commit {versions.get('commit', 'unknown')[:12]}. At its start the"
        f" load average was {found['load']:.1f}: above the number of cores, other programs ran too,"
        " and seconds of the clock say little; seconds of the processor (CPU) are counted per"
        " process. Every part runs in a process of its own. CPU and memory are those of the whole"
        " process, Python's start and imports included; bytes read are those of the part alone."
        " The numbers of this page are in `docs/scale-figures.json`."
    )
    yield ""


def _run(run: Found) -> Iterator[str]:
    size = run["size"]
    steps = list(run["steps"])
    last = run["steps"][steps[-1]]
    yield f"## {size['pool']:,} tasks, {int(steps[-1]):,} steps, {run['episodes']:,} episodes"
    yield ""
    yield (
        f"B = {size['batch']}, K = {size['group']}. The episodes are made up; groups, rewards,"
        " advantages, bundles, step.json, timings, journal and the evaluations (one in 25 steps, on"
        " 158 tasks) are made by the code of a night, and read by it. Writing all of it took"
        f" {run['writing_seconds']:.0f} s in two processes."
    )
    yield ""
    yield from _bytes(run)
    yield "What the loop does in every step, after so many steps:"
    yield ""
    names = [n for n in last if not n.startswith("grpo ")]
    for what, key, unit in (
        ("MB read", "read", 1e6),
        ("CPU s", "cpu", 1.0),
        ("peak MiB", "peak", MIB),
    ):
        rows = []
        for name in names:
            shown = [f"{run['steps'][n][name][key] / unit:.2f}" for n in steps]
            rows.append((name, *shown))
        yield from _table((what, *(f"{int(n):,} steps" for n in steps)), rows)
    yield (
        "A straight line over the steps: what a step reads does not grow with the steps before it,"
        " but for what sums.json says of each task, until every task of the pool was drawn once."
    )
    yield ""
    yield f"Commands on the run after {int(steps[-1]):,} steps:"
    yield ""
    rows = [
        (f"`{name}`", f"{c['cpu']:.1f}", f"{c['wall']:.1f}", f"{c['peak'] / 1e6:.0f}")
        for name, c in last.items()
        if name.startswith("grpo ")
    ]
    yield from _table(("command", "CPU s", "clock s", "peak MB"), rows)


def _bytes(run: Found) -> Iterator[str]:
    sizes = dict(run["bytes"])
    lines = sizes.pop("lines of one bundle") * int(list(run["steps"])[-1])
    rows = [
        (f"`{name}`", f"{n / 1e6:,.1f}", f"{n / run['episodes']:,.0f}")
        for name, n in sorted(sizes.items(), key=lambda item: -item[1])
    ]
    total = sum(sizes.values())
    rows.append(("all", f"{total / 1e6:,.1f}", f"{total / run['episodes']:,.0f}"))
    yield from _table(("on disk", "MB", "bytes an episode"), rows)
    yield (
        f"As JSONL alone the bundles would have about {lines / 1e9:.1f} GB:"
        f" {lines / sizes['bundles']:.1f} times as much. Episodes of a real night on the default"
        " model are compressed to a sixth: their texts repeat more than these. Weights are not"
        " counted."
    )
    yield ""


def _others(found: Found) -> Iterator[str]:
    pools = found["pools"]
    yield "## Other sizes"
    yield ""
    yield "By the number of tasks in the pool (8 groups of 4 episodes a step, 40 steps), CPU s:"
    yield ""
    names = list(next(iter(pools.values())))
    rows = [(name, *(f"{pools[n][name]['cpu']:.2f}" for n in pools)) for name in names]
    yield from _table(("", *(f"{int(n):,} tasks" for n in pools)), rows)
    for title, key, unit in (
        (
            "By the number of episodes a step (B · K), in the bundle's reader:",
            "batches",
            "episodes",
        ),
        ("By the attempts at a task, of 256 episodes a step:", "groups", "attempts"),
        ("By the number of turns of each of 256 episodes:", "turns", "turns"),
        ("By the ids read after each of six turns, of 256 episodes:", "read", "ids"),
    ):
        yield title
        yield ""
        bundles = [_row(n, unit, c) for n, c in found[key].items()]
        head = ("", "bundle on disk, MB", "read it: CPU s", "MiB", "trainer's input: CPU s", "MiB")
        yield from _table(head, bundles)
    yield (
        "Played at once, in the sandbox, by the real rollout, with replies from a script (3 turns,"
        " 2 commands):"
    )
    yield ""
    rows = [
        (
            f"{p['episodes']} episodes",
            f"{p['seconds']:.1f}",
            f"{1e3 * p['seconds'] / p['episodes']:.0f}",
            f"{1e3 * p['cpu'] / p['episodes']:.1f}",
            f"{p['peak'] / MIB:.0f}",
        )
        for p in found["played"]
    ]
    yield from _table(("", "clock s", "ms an episode", "own CPU ms an episode", "peak MiB"), rows)
    walls = found["night"]["steps"]
    yield (
        f"A whole night of {len(walls)} steps on the scripted engine and the two-layer model, with"
        " every phase a process of its own (B = 2, K = 4): "
        + ", ".join(f"{w:.1f}" for w in walls)
        + " s a step."
    )


def _row(n: Any, unit: str, c: Found) -> Sequence[str]:
    read, trainer = c["read the bundle"], c["trainer's input"]
    return (
        f"{n} {unit}",
        f"{c['bytes'] / 1e6:.2f}",
        f"{read['cpu']:.2f}",
        f"{read['peak'] / MIB:.0f}",
        f"{trainer['cpu']:.2f}",
        f"{trainer['peak'] / MIB:.0f}",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "| :-- |" + " --: |" * (len(head) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""
