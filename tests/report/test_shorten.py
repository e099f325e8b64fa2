"""Long layer names are shortened so that what tells them apart survives."""

import pytest
from rich.cells import cell_len

from dst_analyze.text import shorten_middle

GPT2 = [
    f"transformer.h.{block}.{name}"
    for block in range(12)
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
]
BERT = [
    f"bert.encoder.layer.{block}.{name}"
    for block in range(12)
    for name in ("attention.self.query", "attention.self.key", "attention.output.dense", "intermediate.dense")
]


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("layer1.0.conv1", 14, "layer1.0.conv1"),
        ("transformer.h.11.attn.c_attn", 19, "tr…h.11.attn.c_attn"),
        ("bert.encoder.layer.11.attention.self.query", 16, "be…11…self.query"),
        ("two\nlines.conv", 20, "two\\nlines.conv"),
        ("x" * 40, 9, "xxxx…xxxx"),
    ],
)
def test_the_number_and_the_end_survive(name, width, shown):
    assert shorten_middle(name, width) == shown


@pytest.mark.parametrize("names", [GPT2, BERT])
def test_no_two_layers_of_a_transformer_look_the_same(names):
    assert len({shorten_middle(name, 16) for name in names}) == len(names)


@pytest.mark.parametrize("width", range(1, 30))
def test_the_width_is_kept(width):
    for name in (*GPT2, *BERT, "层.层.层.层层层层层层", "..", ".a.", "x" * 99, ""):
        assert cell_len(shorten_middle(name, width)) <= width
