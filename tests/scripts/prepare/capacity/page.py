"""docs/capacity.json, and its section of docs/SCALE.md.

`python -m tests.scripts.prepare.capacity.page` fits the model of a step to measured.json, tries it
on what it was not fitted to, and predicts a first step of 8 tasks × 4 attempts on every box. It
takes seconds and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fieldkit.files.atomic import read_json, write_json, write_text
from scripts.base.checkout import ROOT
from scripts.cli.capacity import plain_prediction, seconds
from scripts.prepare.capacity.box import named_box, shipped_boxes
from scripts.prepare.capacity.elsewhere import of_default
from scripts.prepare.capacity.fitting import fit, left_out, tried_on
from scripts.prepare.capacity.measured import default_night, measured_runs
from scripts.prepare.capacity.published import checks
from scripts.words.quantities import signed
from scripts.words.table import Table

FOUND, PAGE = ROOT / "docs" / "capacity.json", ROOT / "docs" / "SCALE.md"
COMMAND = "python -m tests.scripts.prepare.capacity.page"
BEGIN = f"<!-- written by `{COMMAND}` -->\n"
END = "<!-- end -->\n"

MODELS = ("SmolLM2-135M-Instruct", "Qwen2.5-7B-Instruct")
ATTEMPTS = (32, 1024)


def find() -> dict[str, Any]:
    """Everything that the section says."""
    runs = measured_runs()
    found = fit(runs)
    night = default_night(runs)
    return {
        "schema": 1,
        "fit": asdict(found),
        "fitted": [_about(run) for run in runs if run.is_fitted],
        "left_out": {part: asdict(error) for part, error in left_out(runs).items()},
        "tried_on": {
            run.name: {part: asdict(error) for part, error in tried_on(run, found).items()}
            for run in runs
            if not run.is_fitted
        },
        "article": {
            name: asdict(check)
            for name, check in checks(found.efficiency, night.steps[0].work).items()
        },
        "boxes": {name: asdict(named_box(name)) for name in shipped_boxes()},
        "predicted": {
            model: {
                str(n): {name: _first(model, name, n) for name in shipped_boxes()} for n in ATTEMPTS
            }
            for model in MODELS
        },
    }


def _about(run: Any) -> dict[str, Any]:
    return {"name": run.name, "told": run.told, "steps": len(run.steps)}


def _first(model: str, box: str, attempts: int) -> dict[str, Any]:
    """The prediction for the first step."""
    by_work = of_default(model).on(named_box(box), attempts)
    return plain_prediction(next(iter(by_work.values())))


# --- the section ----------------------------------------------------------------------------------


def section(found: Mapping[str, Any]) -> str:
    """The section, from what was found."""
    e = found["fit"]["efficiency"]
    runs = "; ".join(f"{r['name']} ({r['steps']} steps, {r['told']})" for r in found["fitted"])
    fitted = (_errors(found), _article(found["article"]), _boxes(found["boxes"]))
    predicted = (
        _predictions(model, int(n), by_box)
        for model, by_attempts in found["predicted"].items()
        for n, by_box in by_attempts.items()
    )
    before, after = ("\n".join(t.markdown(3) for t in part) for part in (fitted, predicted))
    return f"""{BEGIN}
Fitted to {runs}: the engine reaches {_share(e["engine"])} of what matrix products reach, the
reference pass {_share(e["reference"])}, the gradient {_share(e["gradient"])}. A decode iteration
takes the engine {found["fit"]["iteration_ms"]:.0f} ms of its own there, and {e["fixed"]:.1f} s of a
step are no device's.

{before}
{_LEGEND}
{after}
{END}"""


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _errors(found: Mapping[str, Any]) -> Table:
    rows = [("left out, one after the other", *_row(found["left_out"]))]
    rows += [(name, *_row(errors)) for name, errors in found["tried_on"].items()]
    return Table(
        "How far off it is on this project's steps",
        ("steps", "n", "rollout", "reference", "gradient", "a step"),
        tuple(rows),
        (
            "Median of the absolute relative error, and in brackets the mean with its sign: below 0"
            " the prediction is too short. The runs below the first row were not fitted. But"
            " for h100 their copies hold no bundles, so the longest attempt is a guess, and as much"
            " is read as in their stored held-out episodes. Their versions were slower: all of them"
            " loaded the trainer for each step (left out here), and first-night had no plain LoRA"
            " product, no tcmalloc and larger micro-batches. Other work ran beside some of their"
            " steps. On the H100 the engine's own time was taken from these very steps; the small"
            " model's passes wait for their kernels to be started, of which the prediction knows"
            " nothing; programs start on slower cores, and the second step started the engine.",
        ),
    )


def _row(errors: Mapping[str, Any]) -> list[str]:
    cells = [
        f"{100 * errors[part]['median']:.0f} % ({signed(100 * errors[part]['bias'], 0)})"
        for part in ("rollout", "reference", "gradient", "step")
    ]
    return [str(errors["step"]["n"]), *cells]


def _article(found: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            check["what"],
            check["known"],
            seconds(check["measured"]),
            seconds(check["predicted"]),
            f"{signed(100 * (check['predicted'] / check['measured'] - 1), 0)} %",
        )
        for check in found.values()
    )
    return Table(
        "How far off it is on a DGX Spark that somebody else measured",
        ("what", "predicted from", "measured, s", "predicted, s", "off"),
        rows,
        (
            "An article on GRPO with Qwen2.5-7B on a DGX Spark: one attempt after another, trainer"
            " loaded and engine restarted for each step. It tells no tokens, so those of a turn are"
            " taken from one arm (12 turns in 28.3 s), and prompts and observations are as long as"
            " here. The first three rows only try whether seconds go with turns. So predictions"
            f" for a model of 7B were within a factor of {_factor(found['step']):.1f} for that step"
            f" and of {max(map(_factor, found.values())):.1f} for its parts. Trust none for a small"
            " model on a GPU: above, its step on the H100 took more than twice what is predicted.",
        ),
    )


def _factor(check: Mapping[str, Any]) -> float:
    """How many times one of measured and predicted is the other."""
    ratio: float = check["predicted"] / check["measured"]
    return max(ratio, 1 / ratio)


def _boxes(found: Mapping[str, Any]) -> Table:
    """Figures, each with the first word of its source."""

    def cell(box: Mapping[str, Any], key: str) -> str:
        source = box["sources"].get(key, "")
        if box[key] is None:
            return "as fitted"
        return f"{box[key]:g} ({source.partition(':')[0]})" if source else f"{box[key]:g}"

    keys = (
        *("tflops", "matmul_share", "reference_share", "gradient_share"),
        *("memory_gb_s", "bandwidth_share", "memory_gb"),
        *("devices", "machines", "iteration_ms", "disk_gb_s", "start_seconds", "link_gb_s"),
    )
    rows = tuple((f"`{key}`", *(cell(box, key) for box in found.values())) for key in keys)
    return Table(
        "The boxes",
        ("figure, and where it is from", *found),
        rows,
        ("`scripts/prepare/capacity/boxes/` has the sources in full.",),
    )


def _predictions(model: str, attempts: int, by_box: Mapping[str, Any]) -> Table:
    columns = ("box", "a step, s", *_GROUPS, "FLOP/s bind from", "cheap up to", "machines", "next")
    return Table(
        f"Predicted: {model}, {attempts} attempts a step",
        columns,
        tuple((name, *_cells(found)) for name, found in by_box.items()),
    )


_GROUPS: dict[str, Sequence[str]] = {
    "rollout": ("decode", "prefill", "worlds"),
    "training": ("reference", "gradient"),
    "start and load": ("trainer_load", "engine_restart"),
    "the rest": ("canary", "transfer", "fixed"),
}

_LEGEND = """### How to read the predictions

They are for a step with the attempts of a night's first one: 11.75 turns, 128 sampled tokens, 405
of context, the longest 210. It has a reference pass, which a night's first step itself is spared.

- *FLOP/s bind from*: so many attempts in flight on a device from which a faster processor helps
  more than faster memory. ∞: at none, as an attempt's KV cache takes longer to read than its token
  to compute.
- *Cheap up to*: until so many attempts a step are reached, twice as many take less than 1.5 times
  as long. 1,024 are the most that were looked at.
- *Machines*: from this number on, twice as many save less than a tenth.
- *Next*: what to double first; – where nothing saves a tenth.
- Engine and trainer stay loaded. The article restarted the engine for each step and loaded the
  trainer again, in steps of 15 minutes, as a run does where both do not fit at once.
- What client and sandbox take of the processor is left out, 2 and 10 ms of a core a turn: with
  1,024 attempts on a GPU that is most of a rollout.
- The bundle of PERFORMANCE-gpu.md has eight times as many ids.
"""


def _cells(found: Mapping[str, Any]) -> list[str]:
    if found["time"] is None:
        return ["does not fit", *["–"] * (len(_GROUPS) + 3), "memory"]
    time, best = found["time"], found["purchases"][0]
    bend = "∞" if found["bend"] is None else f"{found['bend']:.0f}"
    pays = best["seconds"] <= 0.9 * found["seconds"]
    processes = f" ({time['processes']} processes)" if time["processes"] > 1 else ""
    sums = {name: seconds(sum(time[part] for part in group)) for name, group in _GROUPS.items()}
    sums["training"] += processes
    return [
        seconds(found["seconds"]),
        *sums.values(),
        bend,
        str(found["cheap_attempts"]),
        str(found["machines_that_pay"]),
        f"{best['what']}: {seconds(best['seconds'])} s" if pays else "–",
    ]


def in_page(text: str, found: Mapping[str, Any]) -> str:
    """The page with its section written anew."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{PAGE} has lost the marks of the section"
    return before + section(found) + after


def main() -> None:
    """Write both files."""
    write_json(FOUND, find())
    write_text(PAGE, in_page(PAGE.read_text(), read_json(FOUND)))
    print(PAGE)


if __name__ == "__main__":
    main()
