"""The shapes of a Llama-like model's weights, from its config alone."""

from __future__ import annotations

import math
from pathlib import Path

from fieldkit.files.atomic import read_json

Shape = tuple[int, int]
"""Rows (outputs) and columns (inputs) of a linear layer's weight."""


def layer_shapes(model: Path) -> list[Shape]:
    """Those of one layer: queries, keys, values, attention's output, gate, up, down."""
    config = read_json(model / "config.json")
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    attention = [(queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)]
    return [*attention, (inner, hidden), (inner, hidden), (hidden, inner)]


def output_shape(model: Path) -> Shape:
    """That of the output layer."""
    config = read_json(model / "config.json")
    return config["vocab_size"], config["hidden_size"]


def weights(model: Path) -> tuple[int, int]:
    """Weights of the linear layers without the output layer, and of the output layer."""
    layers = read_json(model / "config.json")["num_hidden_layers"]
    return layers * sum(map(math.prod, layer_shapes(model))), math.prod(output_shape(model))
