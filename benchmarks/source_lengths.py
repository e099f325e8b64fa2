"""Lines of the written source of slim models, against lines of the classes that the models' own source has.

    python benchmarks/source_lengths.py [NAME ...]

Half of each group of channels is removed at random. The language models and the vision transformer of torchvision are
narrow ones, of the usual depth.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dst_analyze import couple_channels, trace_model
from dst_analyze.model.loading.load import load_model
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.slimming.source.write import source_of_model
from dst_analyze.slimming.surgery.build import slim


def gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 48, "n_layer": 12, "n_head": 12}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False)
    return GPT2LMHeadModel(config), (torch.randint(0, 64, (2, 9)),)


def bert() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 64, "max_position_embeddings": 32}
    config = BertConfig(**sizes, num_hidden_layers=12, num_attention_heads=12)
    return BertForSequenceClassification(config), (torch.randint(0, 64, (2, 9)),)


def small_vit() -> tuple[nn.Module, Any]:
    loaded = load_model("example:small-vit")
    return loaded.model, torch.zeros(2, 3, 32, 32)


def torchvision_vit() -> tuple[nn.Module, Any]:
    return torchvision_module().models.VisionTransformer(32, 8, 12, 4, 32, 64, num_classes=10), torch.randn(
        2, 3, 32, 32
    )


def torchvision_model(name: str) -> Callable[[], tuple[nn.Module, Any]]:
    side = 224 if name in ("swin_t", "maxvit_t") else 64
    return lambda: (torchvision_module().models.get_model(name, num_classes=10), torch.randn(2, 3, side, side))


CONVOLUTIONAL = ("resnet18", "resnet50", "mobilenet_v2", "densenet121", "vgg16", "efficientnet_b0", "regnet_y_400mf")
MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "gpt2": gpt2,
    "bert": bert,
    "small-vit": small_vit,
    "vit": torchvision_vit,
    **{name: torchvision_model(name) for name in (*CONVOLUTIONAL, "convnext_tiny", "swin_t", "maxvit_t")},
}


def own_lines(model: nn.Module) -> int:
    """Return the lines of a model's classes, without torch's layers."""
    kinds = {type(module) for module in model.modules()}
    own = [k for k in kinds if not k.__module__.startswith("torch.nn") or k.__name__.startswith("TransformerEncoder")]
    return sum(len(inspect.getsource(kind).splitlines()) for kind in own)


def main() -> None:
    torchvision_module()  # transformers imports it
    print("| model | own classes | slim_model.py |\n|---|---|---|")
    for name in sys.argv[1:] or MODELS:
        torch.manual_seed(0)
        model, example = MODELS[name]()
        traced = trace_model(model.eval(), example)
        coupling, rng = couple_channels(traced), random.Random(0)
        removal = {
            group.name: rng.sample(range(group.width), min(group.width // 2, group.width - group.floor))
            for group in coupling.removable
        }
        text = source_of_model(slim(traced, removal, coupling=coupling))
        print(f"| {name} | {own_lines(model)} | {len(text.splitlines())} |", flush=True)


if __name__ == "__main__":
    main()
