"""A frozen base of which each rank keeps a part (PyTorch's FSDP2), for one that no device can hold.

Every rank keeps its part of each layer's weights. A layer's whole weights are gathered from all
ranks for its forward pass and again for its backward pass, and are let go after each. LoRA
parameters and what is outside the layers (embeddings, last norm, output layer) stay whole on every
rank, so an adapter is saved, swapped and compared as without shards. A pass needs all ranks, so all
have to make equally many.
"""

from __future__ import annotations

from torch import nn

from fieldkit.errors import BadInput


def shard_base(backbone: nn.Module, layer_classes: set[str]) -> None:
    """Shard the frozen weights of the backbone's layers over all ranks, which have to be connected.

    layer_classes: names of its layers' classes, as transformers knows them. On CUDA the device
    holds one whole layer at a time meanwhile; everything else stays where it is. Raises `BadInput`
    for a model whose layers are not known.
    """
    from torch.distributed.fsdp import fully_shard

    layers = [m for m in backbone.modules() if type(m).__name__ in layer_classes]
    if not layers:
        raise BadInput(
            f"{type(backbone).__name__}: transformers does not say which modules are its layers, so"
            " it cannot be sharded; set trainer.shard_base to false"
        )
    for layer in layers:
        trained = {p for p in layer.parameters() if p.requires_grad}
        fully_shard(layer, reshard_after_forward=True, ignored_params=trained)
    # It connects the layers' passes and has nothing of its own to shard.
    fully_shard(backbone, reshard_after_forward=True, ignored_params=set(backbone.parameters()))
