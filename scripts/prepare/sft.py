"""`grpo sft`: the warm start, an adapter that can do the work but does not stop.

Demonstrations are played first, or chosen from stored episodes, and kept next to the adapter; then
TRL's SFTTrainer fits a LoRA to them. TRL gets ids and labels, never text or a template, so the
adapter learns exactly the ids of a rollout.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import math
import random
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fieldkit.codec import encode_trajectory, read_trajectories
from fieldkit.errors import BadInput, Interrupted, Shortage
from fieldkit.files.atomic import (
    read_json,
    sha256_file,
    sha256_text,
    whole_dir,
    write_json,
    write_text,
)
from fieldkit.records import Task, Trajectory, segments
from fieldkit.training.adapter import base_name, linear_shapes
from rollout.envs.base import Site
from rollout.envs.registry import make_world
from rollout.sandbox.command import SandboxSettings
from rollout.synth.demonstrate import DemoSettings, demonstrate
from rollout.synth.operation import FINAL, HELDOUT
from rollout.synth.splits import DEMO_SEED, N_DEMOS, demonstration_plans
from rollout.tasks import read_tasks
from rollout.transcript import ChatRenderer
from scripts.base.checkout import from_checkout, in_checkout
from scripts.base.display import Progress
from scripts.base.machine import version
from scripts.prepare.best_episodes import Chosen
from scripts.prepare.model import DEFAULT_MODEL
from scripts.run.lock import only_here


@dataclass(frozen=True)
class SftSettings:
    """The warm start's settings; the defaults are those of the committed adapter."""

    demos: int = N_DEMOS
    epochs: float = 1.0
    batch_size: int = 8
    lr: float = 2e-3
    rank: int = 16
    alpha: int = 32
    target_modules: tuple[str, ...] = ("q_proj", "v_proj")
    seed: int = DEMO_SEED
    demo: DemoSettings = field(default_factory=DemoSettings)


@dataclass(frozen=True)
class Avoided:
    """The task files that demonstrations must not overlap with. Names of seed files in `tasks` may
    not be repeated; those in `contents` may."""

    tasks: tuple[Path, ...]
    contents: tuple[Path, ...] = ()


def default_avoided() -> Avoided:
    """The pool and the evaluation files that `grpo synth` writes."""

    def files(*splits: str) -> tuple[Path, ...]:
        return tuple(from_checkout(f"data/{split}.jsonl") for split in splits)

    return Avoided(files("pool", HELDOUT), files("development", FINAL))


def _read_all(files: tuple[Path, ...]) -> list[Task]:
    return [task for file in files for task in read_tasks(file)]


def play_demonstrations(
    settings: SftSettings,
    model_dir: Path,
    avoid: Avoided,
    scratch: Path,
    progress: Progress,
) -> list[Trajectory]:
    """Play `settings.demos` demonstrations, whose tasks share nothing with `avoid`."""
    renderer = ChatRenderer(model_dir)
    plans = demonstration_plans(settings.seed, _read_all(avoid.tasks), _read_all(avoid.contents))
    worlds = functools.partial(make_world, site=Site(SandboxSettings(), scratch))

    async def play() -> list[Trajectory]:
        gate = asyncio.Semaphore(8)
        done = 0

        async def one(number: int, plan: Any) -> Trajectory:
            nonlocal done
            rng = random.Random(f"{settings.seed}/{number}")
            async with gate:
                demo = await demonstrate(plan, number, worlds, renderer, settings.demo, rng)
            done += 1
            progress("demonstrations", done, settings.demos)
            return demo

        chosen = [next(plans) for _ in range(settings.demos)]
        return list(await asyncio.gather(*(one(i, p) for i, p in enumerate(chosen))))

    return asyncio.run(play())


def as_examples(demo: Trajectory) -> list[dict[str, list[int]]]:
    """Each segment's ids, and labels that are -100 for ids that the policy did not write.

    There is one segment, unless the chat template rewrites earlier turns.
    """
    examples = []
    for segment in segments(demo.turns):
        ids: list[int] = []
        labels: list[int] = []
        for turn in segment:
            fresh = list(turn.prompt_ids[len(ids) :])
            ids += fresh + list(turn.completion_ids)
            labels += [-100] * len(fresh) + list(turn.completion_ids)
        examples.append({"input_ids": ids, "labels": labels})
    return examples


def fit(
    demos: list[Trajectory],
    settings: SftSettings,
    model_dir: Path,
    out: Path,
    progress: Progress,
    record: Callable[[Path, dict[str, float]], None] = lambda folder, metrics: None,
    keep: Path | None = None,
) -> dict[str, float]:
    """Fit the LoRA with TRL and leave a peft adapter folder at `out`; return TRL's metrics.

    record: writes what else belongs to the adapter into its folder, which is not at `out` yet.
    keep: a folder for these demonstrations and settings alone, where the training is kept at every
    twentieth of its batches; what an interrupted call left there is gone on from. None: nowhere.
    """
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    class Report(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            progress("SFT batches", state.global_step, state.max_steps)

    model = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(str(model_dir))
    cuda = torch.cuda.is_available()
    examples = [example for demo in demos for example in as_examples(demo)]
    n_batches = math.ceil(len(examples) / settings.batch_size * settings.epochs)
    with whole_dir(out) as folder:
        args: Any = SFTConfig(
            output_dir=str(keep or folder / "trl"),
            per_device_train_batch_size=settings.batch_size,
            num_train_epochs=settings.epochs,
            learning_rate=settings.lr,
            lr_scheduler_type="cosine",
            warmup_steps=min(10, n_batches // 10),  # few batches reach it too
            weight_decay=0.0,
            max_grad_norm=1.0,
            logging_steps=10,
            save_strategy="steps" if keep else "no",
            save_steps=max(1, n_batches // 20),
            save_total_limit=2,  # the newest may be half written
            report_to="none",
            disable_tqdm=True,
            use_cpu=not cuda,
            bf16=cuda,
            gradient_checkpointing=False,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            train_sampling_strategy="group_by_length",
            seed=settings.seed,
            data_seed=settings.seed,
        )
        # One GPU of several: transformers would take all, with a batch for each, which TRL refuses.
        args._n_gpu = min(1, args.n_gpu)
        trainer: Any = SFTTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(examples),
            args=args,
            peft_config=lora_config(settings),
            callbacks=[Report()],
        )
        result = trainer.train(resume_from_checkpoint=_newest_in(keep) if keep else None)
        trainer.model.save_pretrained(str(folder))
        shutil.rmtree(folder / "trl", ignore_errors=True)
        tidy(folder, model_dir)
        curve = [
            {k: e[k] for k in ("step", "loss", "grad_norm") if k in e}
            for e in trainer.state.log_history
            if "loss" in e
        ]
        write_json(folder / "sft_loss.json", curve)
        metrics = {k: float(v) for k, v in result.metrics.items()}
        record(folder, metrics)
    if keep:
        shutil.rmtree(keep, ignore_errors=True)
    return metrics


def _newest_in(keep: Path) -> str | None:
    """The newest whole checkpoint; None where there is none. What it is whole with comes last."""
    there = sorted(keep.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    for checkpoint in reversed(there):
        try:
            read_json(checkpoint / "trainer_state.json")
        except BadInput:
            continue
        return str(checkpoint)
    return None


def lora_config(settings: SftSettings) -> Any:
    """peft's form of the settings."""
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=list(settings.target_modules),
        task_type="CAUSAL_LM",
    )


def tidy(folder: Path, model_dir: Path) -> None:
    """Remove what depends on this machine from the adapter, and peft's model card.

    peft records the base as a path of this machine and the target modules in the order of a set.
    """
    config = read_json(folder / "adapter_config.json")
    config["base_model_name_or_path"] = base_name(str(model_dir))
    config["target_modules"] = sorted(config["target_modules"])
    write_json(folder / "adapter_config.json", config)
    (folder / "README.md").unlink(missing_ok=True)


def warm_start(
    settings: SftSettings,
    model_dir: Path,
    avoid: Avoided,
    out: Path,
    progress: Progress,
    *,
    model: str | None = None,
) -> dict[str, float]:
    """Make demonstrations, then fit. Demonstrations of an interrupted earlier call are used again.

    model: what the person typed for `model_dir`; None for the default model.

    Raises `BadInput`, before anything is played, if `out` is a file or holds something already, and
    as `require_layers`.
    """
    require_free(out)
    require_layers(settings, model_dir)
    what = f"{base_name(str(model_dir))}-{settings.demos}-{settings.demo.stop_share:g}"
    name = f"demos-{what}-seed{settings.seed}-{_origin(model_dir, avoid)}.jsonl"
    with _making(out) as work:
        kept = work / name
        if kept.is_file():
            demos = list(read_trajectories(kept))
        else:
            demos = play_demonstrations(settings, model_dir, avoid, work / "scratch", progress)
            _keep(kept, demos)
        made = command(settings, out, f"--demos {settings.demos}", model, model or DEFAULT_MODEL)
        stopped = sum(d.stop_reason.by_itself for d in demos)
        record = _recording(out, made, settings, model_dir, kept, stopped)
        with _going_on(work, demos, settings, model_dir) as training:
            return fit(demos, settings, model_dir, out, progress, record, training)


_WORDS = ("tokenizer.json", "tokenizer_config.json", "*.jinja")
"""A model's files that make ids of text."""


def _origin(model_dir: Path, avoid: Avoided) -> str:
    """What demonstrations depend on besides their settings, in short: the tasks that they avoid,
    the tokenizer with its template, and the program."""
    words = sorted(path for pattern in _WORDS for path in model_dir.glob(pattern))
    found = [sha256_file(file) for file in (*avoid.tasks, *avoid.contents, *words)]
    return sha256_text("\n".join([*found, str(version())]))[:8]


def warm_start_from(
    settings: SftSettings,
    model_dir: Path,
    chosen: Chosen,
    flags: str,
    out: Path,
    progress: Progress,
    *,
    model: str | None = None,
    base: str,
) -> dict[str, float]:
    """Fit to chosen episodes; the adapter's sft.json records their origin.

    flags: what of the command says where they come from. base: what names `model_dir`, typed or
    not. model and errors: as `warm_start`.
    """
    require_free(out)
    demos = list(chosen.demos)
    settings = replace(settings, demos=len(demos))
    with _making(out) as work:
        kept = work / "demos-chosen.jsonl"
        _keep(kept, demos)
        stops = sum(d.stop_reason.by_itself for d in demos)
        made = command(settings, out, flags, model, base)
        record = _recording(out, made, settings, model_dir, kept, stops, chosen.origin)
        with _going_on(work, demos, settings, model_dir) as training:
            return fit(demos, settings, model_dir, out, progress, record, training)


def _recording(
    out: Path,
    made_by: str,
    settings: SftSettings,
    model_dir: Path,
    kept: Path,
    stops: int,
    origin: Mapping[str, Any] | None = None,
) -> Callable[[Path, dict[str, float]], None]:
    """What writes sft.json into the folder that becomes `out`: what the adapter was fitted to, and
    the command that does it again.

    kept: the demonstrations. stops: how many of them end themselves. Raises `BadInput` where
    something has come to `out` meanwhile.
    """

    def record(folder: Path, metrics: dict[str, float]) -> None:
        found = {
            "command": made_by,
            "settings": asdict(settings),
            "model": base_name(str(model_dir)),
            "demos_sha256": sha256_file(kept),
            "demos_that_stop": stops,
            "metrics": metrics,
        }
        write_json(folder / "sft.json", found if origin is None else found | {"from": origin})
        require_free(out)

    return record


def require_free(out: Path) -> None:
    """Raise `BadInput` if `out` is a file, the current folder, or holds something already."""
    if not out.name:
        raise BadInput(f"{out}: name a new folder, as in `grpo sft adapters/mine`")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise BadInput(
            f"{out}: it exists already and would be lost;"
            f" `grpo sft {shlex.quote(f'{out}-again')}` writes to another folder"
        )


def require_layers(settings: SftSettings, model_dir: Path) -> None:
    """Raise `BadInput` for a layer that the model does not have: peft adapts the others and says
    nothing."""
    there = {name.rpartition(".")[-1] for name in linear_shapes(model_dir)}
    if unknown := [layer for layer in settings.target_modules if layer not in there]:
        raise BadInput(
            f"--lora {unknown[0]}: {model_dir} has no such layer; it has"
            f" {', '.join(sorted(there))}: name some of them, each with --lora"
        )


@contextmanager
def _making(out: Path) -> Iterator[Path]:
    """The folder for what is kept on the way to the adapter at `out`. Raises `NotOwner` where
    another command makes it, and `BadInput` where one just has."""
    work = out.with_name(f"{out.name}.work")
    work.mkdir(parents=True, exist_ok=True)
    with only_here(work / "lock", f"{out}: another `grpo sft` makes it"):
        require_free(out)
        yield work


@contextmanager
def _going_on(
    work: Path, demos: Sequence[Trajectory], settings: SftSettings, model_dir: Path
) -> Iterator[Path]:
    """The folder in which the training of this model on these demonstrations is kept. What ends it
    is said to lose nothing. An oracle that is played again has other seconds and the same ids."""
    examples = (str(as_examples(demo)) for demo in demos)
    model = [str(model_dir.resolve()), sha256_file(model_dir / "config.json")]
    key = sha256_text("\n".join([*examples, *model, str(asdict(settings))]))[:8]
    kept = f"{work} keeps the demonstrations and most of the training, and the same command goes on"
    try:
        yield work / f"training-{key}"
    except Interrupted:
        raise Interrupted(f"stopped; {kept}") from None
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f"{e.filename}: " if e.filename else ""
        raise Shortage(f"{where}no space left on this disk. {kept}; free some first") from e


def _keep(file: Path, demos: list[Trajectory]) -> None:
    write_text(file, "".join(encode_trajectory(d) + "\n" for d in demos))


def command(settings: SftSettings, out: Path, flags: str, model: str | None, base: str) -> str:
    """What makes the adapter at `out` again, canary included; typed in the checkout.

    flags: what says where the demonstrations come from. model and base: as `warm_start_from`.
    """
    folder = in_checkout(out.resolve())
    typed = "" if model is None else f" --model {shlex.quote(model)}"
    usual, chosen = SftSettings(), ""
    if settings.epochs != usual.epochs:
        chosen += f" --epochs {settings.epochs:g}"
    if settings.lr != usual.lr:
        chosen += f" --lr {settings.lr:g}"
    if settings.demo != usual.demo:
        chosen += f" --stops {settings.demo.stop_share:g}"
    layers = "".join(f" --lora {m}" for m in settings.target_modules)
    layers = "" if settings.target_modules == usual.target_modules else layers
    made = f"grpo sft {shlex.quote(str(folder))} {flags}{chosen}{typed} --seed {settings.seed}"
    return f"{made}{layers} && {proving(folder, base)}"


def proving(adapter: Path, base: str) -> str:
    """The command that proves an adapter of the model that `base` names."""
    words = ["grpo", "prove", str(adapter)]
    return shlex.join(words if base == DEFAULT_MODEL else [*words, "--model", base])
