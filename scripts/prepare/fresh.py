"""`grpo sft --fresh`: writes an untrained adapter, which changes nothing yet.

A run then starts from the bare model, as TRL's trainer does with a `peft_config`. One factor of
every LoRA is zero, so their product is zero, and the first training step changes it.
"""

from __future__ import annotations

from pathlib import Path

from fieldkit.files.atomic import whole_dir, write_json
from scripts.prepare.sft import SftSettings, lora_config, require_free, require_layers, tidy


def write_fresh_adapter(settings: SftSettings, model_dir: Path, out: Path) -> None:
    """Write a LoRA of the settings' rank and layers for the model into the folder `out`.

    Raises `BadInput` if `out` is not empty, or if the model lacks one of the layers.
    """
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    require_free(out)
    require_layers(settings, model_dir)
    model = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.bfloat16)
    torch.manual_seed(settings.seed)
    adapted = get_peft_model(model, lora_config(settings))
    with whole_dir(out) as folder:
        adapted.save_pretrained(str(folder))
        tidy(folder, model_dir)
        layers = " ".join(settings.target_modules)
        write_json(folder / "sft.json", {"fresh": True, "layers": layers, "seed": settings.seed})
