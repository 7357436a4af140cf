"""TRL's GRPO and RLOO trainers with a tiny model, asked for what they compute; nothing trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

WORDS = ("<pad>", "<eos>", "a", "b", "c", "d", "e", "f")
BATCH = 4


def make_trainer(
    kind: Literal["GRPO", "RLOO"], folder: Path, *, reward_funcs: Any, **config: Any
) -> Any:
    """A trainer of TRL whose batch is `BATCH` completions; config: of its settings class."""
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from torch import manual_seed
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    known = models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>")
    built = Tokenizer(known)
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=built, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
    )
    manual_seed(0)
    tiny = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        initializer_range=0.5,
    )
    said = getattr(trl, f"{kind}Config")(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        per_device_train_batch_size=BATCH,
        beta=0.0,  # with another one a second model would be loaded
        **config,
    )
    return getattr(trl, f"{kind}Trainer")(
        model=LlamaForCausalLM(tiny),  # type: ignore[no-untyped-call]
        reward_funcs=reward_funcs,
        args=said,
        train_dataset=Dataset.from_dict({"prompt": ["a b"] * BATCH}),
        processing_class=tokenizer,
    )
