"""The run.toml that `grpo new` writes: one text a preset, with only what a person may want to turn.

Every key that is left out has a default that the manifest shows. Nothing is decided here that
run.toml could not say itself.
"""

from __future__ import annotations

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_text
from scripts.run.config import read_config
from scripts.run.folder import RunFolder

SMOL = """\
# A night on a small model: SmolLM2-135M-Instruct on whatever this machine has.

[run]
steps = "auto"      # or a number; "auto" fits the steps into the minutes
minutes = 45        # what "auto" plans for, evaluations included
eval_every = 25     # steps between evaluations on the held-out set
seed = 0

[model]
path = "smol"                    # the folder that `grpo model` builds; or any folder or hub id
adapter = "adapters/smol-warm"   # where the run starts, and what its KL refers to

[data]
pool = "data/pool.jsonl"
heldout = "data/heldout.jsonl"

[rollout]
tasks_per_step = 8     # B
group_size = 4         # K
temperature = 1.0
max_turns = 12
max_new_tokens = 96

[reward]
kind = "shaped"        # rate - turn_penalty * turns / max_turns
turn_penalty = 0.5     # the documents' 0.2 learned too slowly here: docs/LOG.md

[advantages]
credit = "turn"        # a turn is credited with what came of it, not with the whole episode
scale = "mean"         # a group whose attempts differ little moves the policy little

[trainer]
optimizer = "sgd"      # as fast as AdamW here with a third of the drift in the commands
lr = 4.0
clip_norm = 0.03       # so a step moves the weights by at most 4.0 x 0.03 (L2)
kl_coef = 0.02

[eval]
tasks = 48             # of the held-out file's 158; 0 is all, and half an hour more on two cores

[engine]
lifecycle = "auto"     # hotswap where server and memory allow it, else restart
"""

SPARK = """\
# The documents' night: Qwen 2.5 7B Instruct on a box with a GPU, about 15 minutes a step.

[run]
steps = 34
eval_every = 25
seed = 0

[model]
path = "Qwen/Qwen2.5-7B-Instruct"
adapter = "adapters/spark-sft"   # your own warm start: a LoRA for this base

[data]
pool = "data/pool.jsonl"
heldout = "data/heldout.jsonl"

[rollout]
tasks_per_step = 8     # B
group_size = 4         # K
temperature = 0.8
max_turns = 12
max_new_tokens = 512

[reward]
kind = "shaped"
turn_penalty = 0.2

[advantages]
credit = "episode"     # as published; "turn" learned several times faster on the small model

[trainer]
lr = 5e-6
kl_coef = 0.05
gradient_checkpointing = true   # an 8,192-token episode of a 7B model would not fit without

[engine]
lifecycle = "restart"  # engine and trainer share the memory, so never both at once
max_model_len = 8192
gpu_memory_utilization = 0.4
"""

PRESETS = {"smol": SMOL, "spark": SPARK}


def new_run(folder: RunFolder, preset: str) -> None:
    """Make the run folder with its run.toml. Raises `BadInput` where one is there already."""
    if preset not in PRESETS:
        raise BadInput(f"--preset {preset}: unknown; known: {', '.join(PRESETS)}")
    if folder.config.exists():
        raise BadInput(
            f"{folder.config}: is there already; `grpo run {folder.typed}` goes on with it, or "
            "take another name"
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    write_text(folder.config, PRESETS[preset])
    read_config(folder.config)
