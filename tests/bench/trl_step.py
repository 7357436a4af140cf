"""`python -m tests.bench.trl_step …`: one step of TRL's `GRPOTrainer`, in its own process.

Prints one JSON object: seconds of the step, loading left out, and the ids that were sampled. The
model, the adapter, the environment class, its tasks and the reward function are those that our loop
is given. TRL samples with the model that it trains, because its server mode needs a GPU.
"""

from __future__ import annotations

import json
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldkit.files.json_text import parse_json
from rollout.envs.user_code import load
from scripts.base.checkout import ROOT
from tests.bench.letters import GAME, letters
from trainer.scoring.policy import serving_dtype, training_dtype

LENGTH = "completions/mean_length"
"""What TRL calls the mean number of sampled ids."""

EPISODES_A_PASS = 4
"""Of a forward pass; a step accumulates over as many passes as its episodes need."""


def main(
    model: Annotated[Path, typer.Option(help="Model folder.")],
    adapter: Annotated[Path, typer.Option(help="Where training starts.")],
    tasks: Annotated[Path, typer.Option(help="The tasks, as our loop reads them.")],
    template: Annotated[Path, typer.Option(help="A chat template with tools.")],
    group_size: Annotated[int, typer.Option(help="K.")],
    max_tokens: Annotated[int, typer.Option(help="Of everything after the prompt.")],
    kl_coef: Annotated[float, typer.Option(help="β.")],
) -> None:
    """Take one step and print what it took."""
    from datasets import Dataset
    from peft import PeftModel

    transformers: Any = import_module("transformers")
    trl: Any = import_module("trl")
    rows = [parse_json(line, str(tasks)) for line in tasks.read_text("utf-8").splitlines()]
    prompts = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    episodes = len(rows) * group_size
    dtype = training_dtype("auto", serving_dtype("auto", model))
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template.read_text("utf-8")
    clock = _clock(transformers.TrainerCallback)
    with tempfile.TemporaryDirectory() as out:
        trainer = trl.GRPOTrainer(
            model=PeftModel.from_pretrained(base, str(adapter), is_trainable=True),
            reward_funcs=[letters],
            train_dataset=Dataset.from_list(prompts),
            processing_class=tokenizer,
            environment_factory=load(GAME, ROOT, "bench"),
            callbacks=[clock],
            args=trl.GRPOConfig(
                output_dir=out,
                per_device_train_batch_size=EPISODES_A_PASS,
                gradient_accumulation_steps=episodes // EPISODES_A_PASS,
                num_generations=group_size,
                max_completion_length=max_tokens,
                temperature=1.0,
                beta=kl_coef,
                max_steps=1,
                gradient_checkpointing=False,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                bf16=False,
            ),
        )
        trainer.train()
    (length,) = [e[LENGTH] for e in trainer.state.log_history if LENGTH in e]
    print(json.dumps({"seconds": clock.seconds, "sampled": length * episodes}))


def _clock(base: type) -> Any:
    """A callback that times a step: sampling, rewards, both passes and the optimizer."""

    class Clock(base):  # type: ignore[misc]
        seconds = 0.0

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.seconds = time.perf_counter() - self.began

    return Clock()


if __name__ == "__main__":
    typer.run(main)
