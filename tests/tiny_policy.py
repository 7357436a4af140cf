"""The tiny model, trained on two replies: it either works or says that it is done.

A night needs a policy whose rewards differ within a group, and this one is made in seconds. It
memorises the two replies and writes nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldkit.codec import encode
from fieldkit.records import Task
from rollout.envs.shell import shell_opening
from rollout.transcript import ChatRenderer
from scripts.run.assignments import toml_value
from tests.tiny_model import make_adapter, make_tiny_model

REPLIES = ("```bash\ntouch done.txt\n```", "TASK_COMPLETE")
_STEPS = 150
_LR = 3e-3


def tiny_task(number: int, prefix: str = "tiny") -> Task:
    """A task that the first reply solves: done.txt must exist."""
    seed = f"note{prefix}{number}.txt"
    return Task(
        task_id=f"{prefix}-{number}",
        env="clawgym",
        prompt=f"Create the file done.txt beside {seed}.",
        info={
            "persona": "tester",
            "intent": "create",
            "workspace_seed": {
                "files": [{"path": seed, "kind": "text", "content": f"{prefix} {number}\n"}]
            },
            "skills_required": ["touch"],
            "verifiable_assertions": [
                {"kind": "file_exists", "path": "done.txt"},
                {"kind": "file_unchanged", "path": seed},
            ],
            "difficulty": "easy",
            "estimated_steps": 1,
            "oracle": ["touch done.txt"],
        },
    )


def write_tasks(path: Path, count: int, prefix: str) -> Path:
    """Write a task file of `count` tiny tasks; return its path."""
    path.write_text(
        "".join(encode(tiny_task(i, prefix)) + "\n" for i in range(count)), encoding="utf-8"
    )
    return path


def make_tiny_policy(folder: Path) -> tuple[Path, Path]:
    """Make the model and a LoRA adapter for it below `folder`; return both folders."""
    model_dir = make_tiny_model(folder / "model")
    chat = ChatRenderer(model_dir)
    teach(model_dir, [_example(chat, i, replies) for i in range(4) for replies in _episodes()])
    # A scale small enough to keep the replies, and large enough that the adapter has an effect.
    return model_dir, make_adapter(folder / "adapter", model_dir, scale=0.02)


Example = tuple[list[int], list[int]]
"""The ids of an episode, and the same with -100 in place of those that the policy did not write."""


def teach(model_dir: Path, examples: Sequence[Example], steps: int = _STEPS) -> None:
    """Train the replies of the examples, one example a step, and write the model back."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two layers are too small to parallelise: threads only wait
    try:
        _teach(model_dir, examples, steps)
    finally:
        torch.set_num_threads(threads)


def _teach(model_dir: Path, examples: Sequence[Example], steps: int) -> None:
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32)
    # The end of turn is also the padding token, whose embedding starts as zero: no logit can rise.
    embedding = model.model.embed_tokens.weight.requires_grad_(False)
    embedding[ChatRenderer(model_dir).eot_id].normal_(0.0, model.config.initializer_range)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=_LR)
    for step in range(steps):
        ids, labels = examples[step % len(examples)]
        _loss(model, torch.tensor(ids), torch.tensor(labels)).backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(str(model_dir))


def _loss(model: Any, ids_n: Any, labels_n: Any) -> Any:
    """Cross-entropy over the reply tokens; other positions need no logits."""
    import torch

    hidden = model.model(input_ids=ids_n[None]).last_hidden_state[0, :-1]
    written = labels_n[1:] != -100
    logits = model.lm_head(hidden[written])
    return torch.nn.functional.cross_entropy(logits, labels_n[1:][written])


def _episodes() -> list[tuple[str, ...]]:
    work, done = REPLIES
    return [(done,), (work, done), (work, work)]


def _example(chat: ChatRenderer, number: int, replies: tuple[str, ...]) -> Example:
    task = tiny_task(number)
    transcript = chat.start(shell_opening(task).messages)
    ids: list[int] = []
    labels: list[int] = []
    for reply in replies:
        fresh = list(transcript.prompt_ids[len(ids) :])
        written = list(chat.encode_reply(reply))
        ids += fresh + written
        labels += [-100] * len(fresh) + written
        transcript.add_completion(written)
        transcript.add_observation([{"role": "user", "content": "(no output)"}])
    return ids, labels


def write_run(folder: Path, model: Path, adapter: Path, **tables: dict[str, object]) -> Path:
    """Write a run folder with two-turn episodes on tiny tasks; `tables` overrides or adds keys."""
    folder.mkdir(parents=True)
    config: dict[str, dict[str, object]] = {
        "run": {"steps": 2, "eval_every": 0, "preflight": False},
        "model": {"path": str(model), "adapter": str(adapter)},
        "data": {
            "pool": str(write_tasks(folder.parent / "pool.jsonl", 6, "pool")),
            "heldout": str(write_tasks(folder.parent / "heldout.jsonl", 4, "held")),
        },
        "rollout": {"tasks_per_step": 2, "group_size": 4, "max_turns": 2, "max_new_tokens": 16},
        "trainer": {"lr": 1e-3, "dtype": "fp32"},
        "engine": {"kv_cache_gib": 0.25, "max_model_len": 512, "dtype": "float32"},
    }
    for name, table in tables.items():
        config[name] = {**config.get(name, {}), **table}
    lines = [
        line
        for name, table in config.items()
        for line in (f"[{name}]", *(f"{k} = {toml_value(v)}" for k, v in table.items()), "")
    ]
    (folder / "run.toml").write_text("\n".join(lines))
    return folder
