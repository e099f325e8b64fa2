"""The fx pass: the masked graph computes what the masked model computes, masks visible as nodes."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from zoo import ZOO

from dst_analyze.errors import ModelError
from dst_analyze.masking.masked import Unit, mask_model
from dst_analyze.masking.rewrite import WithWeights, masked_graph, masked_part
from dst_analyze.model.tracing import trace_model

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


@pytest.mark.parametrize("unit", ["one", "layer"])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_masked_graph_is_the_masked_model(name: str, unit: Unit) -> None:
    torch.manual_seed(0)
    model, x = ZOO[name].build(), ZOO[name].inputs()
    traced = trace_model(model, x)
    masked = mask_model(traced, unit=unit).eval()
    graph = masked_graph(masked, traced)
    with torch.no_grad():
        masked.thresholds.uniform_(0, 0.3)  # shared: the graph sees the change
    expected, found = masked(x), graph(x)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, model.eval()(x))
    masks = [node for node in graph.graph.nodes if node.op == "call_function" and node.target is masked_part]
    assert {node.args[0].target for node in masks} == {layer.aliases[0] for layer in masked.layers}
    found.sum().backward()
    assert masked.thresholds.grad.abs().sum() > 0
    assert isinstance(graph, fx.GraphModule)


def test_every_weight_a_module_owns_is_handed_in() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    traced = trace_model(model, torch.randn(2, 4))
    graph = masked_graph(mask_model(traced), traced)
    assert [type(m).__name__ for m in graph.modules() if isinstance(m, WithWeights)] == ["WithWeights"]
    assert "masked_part" in graph.code


def test_a_model_without_a_graph_says_so() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x.detach().numpy().sum()) > 1e9:  # leaves torch
                return x
            return self.layer(torch.from_numpy(x.detach().numpy()))

    traced = trace_model(Stubborn(), torch.randn(2, 4))
    assert traced.rung == 3
    with pytest.raises(ModelError, match="no graph to rewrite"):
        masked_graph(mask_model(traced), traced)


class KeyBiasZeroed(nn.Module):
    """As Swin v2 does: a part of a bias is written to in place, and nothing reads what that returns."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.linear.bias.clone()
        bias[2:4].zero_()
        return nn.functional.linear(x, self.linear.weight, bias)


def test_what_is_done_in_place_stays_though_nothing_reads_it() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    traced = trace_model(KeyBiasZeroed(), x)
    masked = mask_model(traced).eval()
    torch.testing.assert_close(masked_graph(masked, traced)(x), masked(x))
