"""Models on `meta` whose code reads values that follow from sizes alone."""

import pandas as pd
import pytest
import torch
from torch import nn

from dst_analyze import couple_channels, rank_layers, suggest_widths, trace_model
from dst_analyze.errors import ModelError
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.meta_values import MetaValues

FACTS = ("name", "shape", "macs", "output_shape", "rung", "op")


class Positions(nn.Module):
    """A model that looks at positions and a mask, as Hugging Face's do."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.out = nn.Embedding(20, 8), nn.Linear(8, 32), nn.Linear(32, 5)

    def forward(self, tokens):
        x = self.embed(tokens)
        positions = torch.arange(tokens.shape[1], device=x.device).unsqueeze(0)
        if (positions.diff() != 1).any():
            raise ValueError("packed sequences")
        kept = torch.ones_like(positions, dtype=torch.bool).nonzero()
        if len(kept) == int(positions[0, -1]) + 1:
            x = self.hidden(x).relu()
        return self.out(x)


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(x) if self.out.weight.sum() > 0 else x


def facts(model, inputs):
    traced = trace_model(model, inputs)
    groups = [(group.name, group.channels) for group in couple_channels(traced).groups]
    return [[getattr(layer, fact) for fact in FACTS] for layer in traced.layers], groups


def test_a_model_on_meta_is_traced_and_coupled_as_on_the_cpu():
    tokens = torch.zeros(2, 6, dtype=torch.long)
    layers, groups = facts(Positions().to("meta"), tokens.to("meta"))
    assert [layer[0] for layer in layers] == ["hidden", "out"]
    assert (layers, groups) == facts(Positions(), tokens)


def test_llama_on_meta_is_traced_as_on_the_cpu():
    torchvision_module()  # before transformers imports it, which fails beside a CPU build of torch
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    found = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            model, tokens = transformers.LlamaForCausalLM(config), torch.zeros(2, 6, dtype=torch.long)
        found.append(facts(model, {"input_ids": tokens}))
    assert found[0] == found[1]
    assert len(found[0][0]) == 15


def test_widths_are_suggested_without_values():
    rows = [(layer, alpha, ratio) for alpha in (1, 2) for layer, ratio in (("hidden", 0.4 / alpha), ("out", 0.8))]
    ranking = rank_layers(pd.DataFrame(rows, columns=["layer", "alpha", "remaining"]))
    tokens = torch.zeros(2, 6, dtype=torch.long)
    found = [
        [(group.group, group.width, group.new_width) for group in suggest_widths(trace_model(*each), ranking).groups]
        for each in ((Positions().to("meta"), tokens.to("meta")), (Positions(), tokens))
    ]
    assert found[0] == found[1]
    assert any(new < old for _, old, new in found[0])


def test_what_depends_on_weights_is_an_error_that_names_the_line():
    with pytest.raises(ModelError, match="cannot be called on meta tensors") as error:
        trace_model(Reads().to("meta"), torch.empty(2, 4, device="meta"))
    line = Reads.forward.__code__.co_firstlineno + 1
    assert error.value.place.endswith(f"test_meta_values.py:{line}")
    assert "build it on the CPU" in error.value.hint


def test_values_are_followed_through_views_and_writes():
    unknown = torch.empty(3, device="meta")
    with MetaValues():
        table = torch.arange(6, device="meta").view(2, 3)
        table[0].fill_(7)
        assert table.is_meta
        assert int(table.sum()) == 7 * 3 + 3 + 4 + 5
        row = table[1]
        row.copy_(unknown)
        for stale in (table, row, table[0], unknown, torch.rand(2, device="meta"), torch.empty(2, device="meta")):
            with pytest.raises(RuntimeError, match="meta"):
                stale.sum().item()
        with pytest.raises(RuntimeError, match="meta"):
            torch.zeros(2_000_000, device="meta").any().item()
        assert torch.ones(3, device="cpu").sum().item() == 3
