"""`grpo plan`: what a run's steps would take on other boxes, and what to buy next.

Every number that it prints is predicted but for those that it calls measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldkit.errors import BadInput
from scripts.cli.arguments import Json, print_json

if TYPE_CHECKING:
    from scripts.prepare.capacity.advice import Prediction
    from scripts.prepare.capacity.box import Box
    from scripts.prepare.capacity.elsewhere import Elsewhere
    from scripts.prepare.capacity.fitting import Error
    from scripts.words.table import Table

app = typer.Typer()

MOST_ATTEMPTS = 1_000_000


@app.command()
def plan(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="The run whose steps are predicted; default: a measured night of 8 tasks x 4"
            " attempts.",
        ),
    ] = None,
    box: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A box that has a name, or a .toml file of yours; may be given several times."
            " Default: every box that has a name.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FOLDER",
            help="Another model than the run's: a folder with its config.json, or a name.",
        ),
    ] = None,
    attempts: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_ATTEMPTS, help="Attempts a step (B x K); default: the run's."),
    ] = None,
    json_: Json = False,
) -> None:
    """Predict what a run's steps would take on other machines, and say what to buy next.

    Example: grpo plan tonight --box spark --model Qwen2.5-7B-Instruct
    """

    from scripts.cli.look import print_rich
    from scripts.prepare.capacity.box import named_box, shipped_boxes
    from scripts.prepare.capacity.elsewhere import of_default, of_run
    from scripts.prepare.capacity.fitting import stored_fit
    from scripts.run.folder import open_run
    from scripts.run.reader import RunReader

    boxes = {name: named_box(name) for name in box or shipped_boxes()}
    found = of_default(model) if run is None else of_run(RunReader(open_run(run)), model)
    if attempts is not None and attempts < next(iter(found.works.values())).group_size:
        raise BadInput(f"--attempts {attempts}: fewer than one group has (K)")
    predictions = {name: found.on(one, attempts) for name, one in boxes.items()}
    _, errors = stored_fit()
    changed = model is not None
    if json_:
        print_json(plain_plan(found, boxes, predictions, errors, attempts, changed=changed))
        return
    page = steps_table(found, boxes, predictions, errors, attempts, changed=changed)
    print_rich(page.rich())
    if box:
        for name, one in boxes.items():
            for shown in box_tables(found, one, predictions[name], attempts):
                print_rich(shown.rich())


def steps_table(
    found: Elsewhere,
    boxes: Mapping[str, Box],
    predictions: Mapping[str, Mapping[str, Prediction]],
    errors: Mapping[str, Error],
    attempts: int | None = None,
    *,
    changed: bool = False,
) -> Table:
    """Boxes by rows; seconds of a step and of its parts, for each of the works. changed: the model
    is not the one that was played, so nothing was measured."""
    from scripts.prepare.capacity.published import told
    from scripts.words.quantities import percent
    from scripts.words.table import Table

    columns = ("box", "work", "a step, s", "rollout", "training", "start and load", "the rest")
    rows = []
    for work, taken in _measured(found, attempts, changed=changed).items():
        cells = [seconds(taken[part]) for part in ("rollout", "training", "load", "rest")]
        rows.append((f"measured: {found.machine}", work, seconds(sum(taken.values())), *cells))
    for name in boxes:
        for work, prediction in predictions[name].items():
            if (time := prediction.time) is None:
                rows.append((name, work, "does not fit", "–", "–", "–", "–"))
                continue
            loads = time.trainer_load + time.engine_restart
            rest = time.total - time.rollout - time.training - loads
            numbers = (time.total, time.rollout, time.training, loads, rest)
            rows.append((name, work, *map(seconds, numbers)))
    of = f", {attempts} attempts a step" if attempts else ""
    step = errors["step"]
    notes = (
        "Predicted, but for what is called measured. On the machine whose steps were fitted, a step"
        f" that is left out is predicted with an error of {percent(step.median)} (median) and"
        f" {percent(step.worst)} (largest of {step.n}). {told(found.fit.efficiency)}"
        " docs/SCALE.md has more.",
        *_doubts(found),
    )
    alarm = _alarm(found, boxes)
    title = f"{found.name} elsewhere, with {found.shape.name}{of}: predicted"
    return Table(title, columns, tuple(rows), notes, alarm)


def _alarm(found: Elsewhere, boxes: Mapping[str, Box]) -> str:
    """On which boxes the predictions are not to be trusted, and how far off such ones were; empty
    where on none."""
    from scripts.prepare.capacity.fitting import doubt
    from scripts.words.quantities import percent

    doubted = {name: d for name, box in boxes.items() if (d := doubt(found.shape, box)) is not None}
    if not doubted:
        return ""
    known = next(iter(doubted.values()))
    way = "short" if known.step.bias < 0 else "long"
    return (
        f"Do not trust the predictions for {', '.join(doubted)}: the model is small for a GPU,"
        " where it waits for kernels and programs to start, of which the prediction knows little."
        f" The {known.step.n} measured steps of {known.model} on {known.box} are predicted"
        f" {percent(abs(known.step.bias))} too {way} in the mean."
    )


def _measured(
    found: Elsewhere, attempts: int | None, *, changed: bool
) -> Mapping[str, Mapping[str, float]]:
    """The measured seconds of the steps that are predicted, by work and part; none where other
    steps are."""
    return {} if attempts or changed else found.measured


def _doubts(found: Elsewhere) -> tuple[str, ...]:
    if all(work.is_exact for work in found.works.values()):
        return ()
    return (
        "The run's bundles are not here: the length of its longest attempt is a guess, and so is"
        " what its engine read.",
    )


def box_tables(
    found: Elsewhere,
    box: Box,
    predictions: Mapping[str, Prediction],
    attempts: int | None = None,
) -> list[Table]:
    """One box in detail: the parts of a step; attempts, machines and what to buy."""
    from scripts.prepare.capacity import advice
    from scripts.words.table import Table

    works = list(predictions)
    fitting = {name: p.time for name, p in predictions.items() if p.time is not None}
    rows = [
        (words, *(seconds(fitting[w].parts[part]) for w in fitting))
        for part, words in advice.WORDS.items()
    ]
    notes = [f"{w}: {advice.next_purchase(predictions[w])}" for w in works]
    notes += [_where_it_bends(w, p) for w, p in predictions.items() if p.time is not None]
    notes.append(_memory(predictions[works[0]]))
    if box.devices > 1:
        notes += [_trainer(w, time.processes) for w, time in fitting.items()]
    alarm = _alarm(found, {box.title: box})
    title, columns = f"{box.title}: predicted", ("part, s", *fitting)
    tables = [Table(title, columns, tuple(rows), tuple(notes), alarm)]
    if not fitting:
        return tables
    name, case = next(iter(found.cases(box, attempts).items()))
    cells = tuple(
        (str(n), seconds(t.total), seconds(t.total / n), seconds(t.rollout), seconds(t.training))
        for n, t in case.by_attempts()
    )
    columns = ("attempts a step", "a step, s", "an attempt", "rollout", "training")
    tables.append(Table(f"{box.title}, {name}, by attempts: predicted", columns, cells))
    fleet = tuple((str(n), seconds(total)) for n, total in case.by_machines())
    return [
        *tables,
        Table(
            f"{box.title}, {name}, by machines: predicted", ("machines like it", "a step, s"), fleet
        ),
    ]


def _where_it_bends(work: str, prediction: Prediction) -> str:
    from scripts.prepare.capacity import advice

    bend = prediction.bend
    bound = (
        "is bound by memory bandwidth at any number in flight"
        if math.isinf(bend)
        else f"is bound by FLOP/s from {bend:.0f} in flight on a device"
    )
    n = prediction.machines_that_pay
    cheap = prediction.cheap_attempts
    until = "at least until" if cheap == advice.ATTEMPTS[-1] else "until"
    machines = "a second machine does not pay" if n == 1 else f"up to {n} machines pay"
    return (
        f"{work}: decoding {bound}; twice the attempts take less than 1.5 times as long {until}"
        f" {cheap} are reached (with engine.max_num_seqs raised); {machines} (predicted)."
    )


def _memory(prediction: Prediction) -> str:
    room = prediction.room
    if not room.fits:
        return "Memory: the model does not fit one device."
    again = " and trainer.gradient_checkpointing = true" if room.checkpointing else ""
    figures = (
        f"engine about {room.engine / 1e9:.0f} GB, trainer about {room.trainer / 1e9:.0f} with"
        f" micro-batches of {room.tokens:,} tokens{again}, of {room.there / 1e9:.0f} (predicted),"
        f" {room.seats} attempts at once"
    )
    if room.side_by_side:
        return f"Memory: {figures}: both fit side by side, so adapters are swapped in."
    return f"Memory: {figures}: one after the other, so engine and trainer start for every step."


def _trainer(work: str, processes: int) -> str:
    if processes == 1:
        return (
            f"{work}: one trainer process is predicted to be the fastest, as by default, because"
            " several start and load for every step."
        )
    return (
        f"{work}: {processes} trainer processes are predicted to be the fastest"
        f" (trainer.processes = {processes} in run.toml)."
    )


def seconds(value: float) -> str:
    """Seconds with three digits or so."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def plain_plan(
    found: Elsewhere,
    boxes: Mapping[str, Box],
    predictions: Mapping[str, Mapping[str, Prediction]],
    errors: Mapping[str, Error],
    attempts: int | None = None,
    *,
    changed: bool = False,
) -> dict[str, Any]:
    """The same, JSON-ready. Seconds; every number below "predicted" is a prediction. Those for the
    boxes below "doubt" are not to be trusted."""
    from dataclasses import asdict

    from scripts.prepare.capacity.fitting import doubt

    doubts = {name: doubt(found.shape, box) for name, box in boxes.items()}
    measured = _measured(found, attempts, changed=changed)

    return {
        "run": found.name,
        "model": found.shape.name,
        "work": {name: asdict(work) for name, work in found.works.items()},
        "fit": asdict(found.fit),
        "error": {part: asdict(error) for part, error in errors.items()},
        "measured": {work: dict(taken) for work, taken in measured.items()},
        "doubt": {name: asdict(d) for name, d in doubts.items() if d is not None},
        "predicted": {
            name: {
                "box": asdict(boxes[name]),
                **_plain_case(found, boxes[name], attempts),
                **{work: plain_prediction(p) for work, p in by_work.items()},
            }
            for name, by_work in predictions.items()
        },
    }


def _plain_case(found: Elsewhere, box: Box, attempts: int | None) -> dict[str, Any]:
    """The first work on a box by attempts and by machines, as `box_tables` has it."""
    case = next(iter(found.cases(box, attempts).values()))
    return {
        "by_attempts": [
            {"attempts": n, "seconds": t.total, "rollout": t.rollout, "training": t.training}
            for n, t in case.by_attempts()
        ],
        "by_machines": [{"machines": n, "seconds": total} for n, total in case.by_machines()],
    }


def plain_prediction(prediction: Prediction) -> dict[str, Any]:
    """One prediction, JSON-ready; bend is null where there is none."""
    from dataclasses import asdict

    from scripts.prepare.capacity.advice import next_purchase

    time = prediction.time
    return {
        **asdict(prediction),
        "bend": prediction.bend if math.isfinite(prediction.bend) else None,
        "seconds": None if time is None else time.total,
        "next": next_purchase(prediction),
    }
