"""The SQL agent's class in TRL's own trainer, as it stands: one optimizer step.

The trainer is the real one with a model of random weights; only what the model says is given, so
that one of the two attempts is right and there is something to learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rollout.envs.sql.sql_env import SqlEnv
from rollout.envs.sql.sql_rewards import correctness, operational, progress
from rollout.transcript import ChatRenderer
from scripts.prepare.model import default_model_dir
from tests.rollout.envs.sql.library import write_library
from tests.rollout.envs.test_tool_world import call, template

ROW = {"database": "library", "answer": 500, "sql": "SELECT max(pages) FROM books"}
QUESTION = "What is the highest pages of a book?"
SAID = [
    [call("query", '{"sql": "SELECT max(pages) FROM books"}'), "I cannot."],
    [call("answer", '{"value": "500"}')],
    ["Done."],
]
"""By turn, of the attempts that go on."""


@pytest.fixture(autouse=True)
def _databases(tmp_path: Path) -> Iterator[None]:
    write_library(tmp_path)
    SqlEnv.configure(db_dir=str(tmp_path))
    yield
    SqlEnv.configure()


def test_trl_trains_a_step_on_the_class_and_its_three_rewards(tmp_path: Path) -> None:
    import torch
    from datasets import Dataset

    transformers: Any = import_module("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL names the vLLM versions that it was tried with
        trl: Any = import_module("trl")
    renderer = ChatRenderer(default_model_dir(), template("qwen2_5"))
    script = [[renderer.encode_reply(text) for text in turn] for turn in SAID]

    class Scripted(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **more: Any) -> Any:
            said = script.pop(0)
            assert len(said) == len(prompt_ids)
            return [list(ids) for ids in said], [[0.0] * len(ids) for ids in said]

    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model_dir())
    tokenizer.chat_template = template("qwen2_5")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            max_position_embeddings=4096,
        )
    )
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    row = {"prompt": [{"role": "user", "content": QUESTION}], **ROW}
    trainer = Scripted(
        model=model,
        reward_funcs=[correctness, progress, operational],
        train_dataset=Dataset.from_list([row, row]),
        processing_class=tokenizer,
        environment_factory=SqlEnv,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=1024,
            max_steps=1,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
        ),
    )
    trainer.train()
    logged = {key: value for entry in trainer.state.log_history for key, value in entry.items()}
    assert logged["rewards/correctness/mean"] == 0.5
    assert logged["rewards/progress/mean"] == 0.5
    assert logged["rewards/operational/mean"] == pytest.approx((0.02 + 0) / 2)
    moved = [n for n, weight in model.state_dict().items() if not torch.equal(weight, before[n])]
    assert moved
