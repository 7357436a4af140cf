"""What a model costs a token: weights, bytes and FLOPs, from its config.json alone.

A config is enough to say what a step would take, so nothing is downloaded. For models built like
Llama (attention and a gated MLP, dense): a mixture of experts reads other weights for every token
and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput, MissingFile
from fieldkit.files.atomic import read_json
from fieldkit.registry import nearest
from fieldkit.training.adapter import base_name
from scripts.base.checkout import from_home
from trainer.footprint.step_bytes import size_of

SHIPPED = Path(__file__).with_name("models")
"""A folder with a config.json for each model that has a name here."""

ITEM_BYTES = 2
"""bfloat16."""

DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class ModelShape:
    """A model's dimensions. mlp: the width of its gated MLP. queries, keys: the widths of
    attention's queries, and of its keys (and values)."""

    name: str
    folder: Path
    hidden: int
    mlp: int
    n_layers: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool

    @property
    def layer_weights(self) -> int:
        """Weights of all linear layers but the output layer: every token is multiplied by them."""
        attention = 2 * self.hidden * self.queries + 2 * self.hidden * self.keys
        return self.n_layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def output_weights(self) -> int:
        """Weights of the output layer: sampled and scored tokens are multiplied by them."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights but those of norms and biases (0.03 % in the default model)."""
        return self.layer_weights + self.output_weights * (1 if self.tied else 2)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in bfloat16."""
        return ITEM_BYTES * self.parameters

    @property
    def streamed_bytes(self) -> int:
        """Bytes of the weights that one decode iteration reads, in bfloat16: of an input embedding
        of its own only a row a token is read."""
        return ITEM_BYTES * (self.layer_weights + self.output_weights)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that one token keeps, in bfloat16."""
        return 2 * ITEM_BYTES * self.keys * self.n_layers

    def forward_flops(self, tokens: float, scored: float) -> float:
        """FLOPs of a forward pass: 2 for each weight that a token is multiplied by (Kaplan et al.
        2020, arXiv 2001.08361, section 2.1). scored: tokens that need the output layer.

        Attention's own products are left out: at 400 tokens they are 5 % of the default model's.
        """
        return 2 * (self.layer_weights * tokens + self.output_weights * scored)

    def gradient_flops(self, tokens: float, scored: float) -> float:
        """FLOPs of forward and backward: 4 for each weight. The base is frozen, so of the backward
        pass only the half that carries the gradient to the layer below is computed."""
        return 2 * self.forward_flops(tokens, scored)

    def lora_parameters(self, rank: int, targets: Sequence[str] = DEFAULT_TARGETS) -> int:
        """Trained parameters of a LoRA: rank x (inputs + outputs) of each target, in each layer."""
        h, q, k, m = self.hidden, self.queries, self.keys, self.mlp
        widths = {"q_proj": h + q, "k_proj": h + k, "v_proj": h + k, "o_proj": q + h}
        widths |= {"gate_proj": h + m, "up_proj": h + m, "down_proj": m + h}
        return self.n_layers * rank * sum(widths[target] for target in targets)


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a folder. Raises `BadInput` naming file and key."""
    file = folder / "config.json"
    if not file.is_file():
        raise MissingFile(
            f"{file}: no such file; --model takes a folder with a model's config.json, or one of"
            f" {', '.join(shipped())}"
        )
    config = read_json(file)
    if not isinstance(config, dict):
        raise BadInput(f"{file}: expected an object, found {type(config).__name__}")
    if experts := next((key for key in config if "experts" in key), None):
        raise BadInput(
            f"{file}: {experts}: a mixture of experts reads other weights for every token, which"
            " this model of a step does not know"
        )

    def width(key: str) -> int:
        return size_of(config, key, file)

    hidden, heads = width("hidden_size"), width("num_attention_heads")
    head = width("head_dim") if config.get("head_dim") else hidden // heads
    key_heads = width("num_key_value_heads") if "num_key_value_heads" in config else heads
    return ModelShape(
        name=base_name(str(folder)),
        folder=folder,
        hidden=hidden,
        mlp=width("intermediate_size"),
        n_layers=width("num_hidden_layers"),
        queries=head * heads,
        keys=head * key_heads,
        vocabulary=width("vocab_size"),
        tied=config.get("tie_word_embeddings") is True,
    )


def shipped() -> list[str]:
    """The models that have a name here."""
    return sorted(file.parent.name for file in SHIPPED.glob("*/config.json"))


def named_shape(model: str) -> ModelShape:
    """The shape of a model by its name here (in any case), by its folder, or by a hub id that ends
    in such a name. Raises `BadInput`."""
    by_name = {name.lower(): SHIPPED / name for name in shipped()}
    if model.lower() in by_name:
        return read_shape(by_name[model.lower()])
    folder = from_home(model)
    if folder.is_dir():
        return read_shape(folder)
    if model.count("/") == 1 and (name := model.rpartition("/")[2].lower()) in by_name:
        return read_shape(by_name[name])
    hint = f"; did you mean {near!r}?" if (near := nearest(model, shipped())) else ""
    raise BadInput(
        f"--model {model}: neither a folder with a config.json nor one of"
        f" {', '.join(shipped())}{hint}"
    )


def shape_of_folder(folder: str) -> ModelShape:
    """The shape of the model of a manifest: its folder, or on another machine than the run's a
    model of that name here. Raises `BadInput`."""
    if (Path(folder) / "config.json").is_file():
        return read_shape(Path(folder))
    for name in shipped():
        if name.lower() == base_name(folder).lower():
            return read_shape(SHIPPED / name)
    raise BadInput(
        f"{folder}: the run's model is not on this machine; --model names a folder with its"
        f" config.json, or one of {', '.join(shipped())}"
    )
