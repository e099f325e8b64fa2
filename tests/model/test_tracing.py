"""Reading a model: layers with their facts, what is skipped and why, coverage, MACs, and the rungs of the ladder."""

from __future__ import annotations

import inspect
import threading

import pytest
import torch
from small_sweeps import TEST, TRAIN
from torch import nn
from torch.nn import functional as F
from zoo import Residual, TiedHead

from dst_analyze.errors import ModelError
from dst_analyze.masking.masked import mask_model
from dst_analyze.model.inputs.inputs import Inputs, as_inputs
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.tracing.skip_cause import SkipCause
from dst_analyze.model.tracing.skipped import Skipped
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.run.record import SkippedLayer
from dst_analyze.sweep.planning.plan import plan_sweep


def test_facts_of_a_small_net() -> None:
    traced = trace_model(Residual(), torch.randn(2, 3, 7, 7))
    layers = {layer.name: layer for layer in traced.layers}
    assert list(layers) == ["stem.0", "body.0", "head"]  # in the order of use
    stem = layers["stem.0"]
    assert (stem.kind, stem.parameter, stem.shape, stem.params) == ("Conv2d", "stem.0.weight", (6, 3, 3, 3), 162)
    assert stem.macs == 162 * 49
    assert stem.output_shape == (2, 6, 7, 7)
    assert stem.op == "conv2d"
    assert {layer.rung for layer in traced.layers} == {1}
    assert traced.macs == sum(layer.macs for layer in traced.layers)
    assert traced.params == sum(p.numel() for p in Residual().parameters())
    assert traced.coverage.weights == traced.coverage.parameters == 1
    assert traced.table["name"].tolist() == list(layers)
    assert inspect.getfile(Residual) in stem.place  # zoo.py, the line of the call


def test_attention_is_seen_in_eval_mode_too() -> None:
    """Where nothing is differentiated torch has one operation for a whole encoder layer, which nobody can count."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    traced = trace_model(layer, torch.zeros(2, 12, 32))
    weights = sum(p.numel() for name, p in layer.named_parameters() if p.ndim == 2)
    assert traced.macs == sum(facts.macs for facts in traced.layers) == 12 * weights
    assert torch.backends.mha.get_fastpath_enabled()


def test_macs_do_not_depend_on_the_batch() -> None:
    one, four = (trace_model(Residual(), torch.randn(n, 3, 7, 7)).macs for n in (1, 4))
    assert one == four


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_macs_are_counted_by_formula_and_said_to_be(kind: type[nn.RNNBase]) -> None:
    layer = kind(5, 4, batch_first=True)
    traced = trace_model(layer, torch.randn(2, 7, 5))
    assert {facts.macs_note for facts in traced.layers} == {"closed form"}
    assert traced.macs == 7 * sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
    assert bool(traced.uncounted) == (kind is nn.LSTM)  # torch knows the pieces of the others
    assert all(facts.recurrent for facts in traced.layers)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 8)
        self.position = nn.Parameter(torch.randn(5, 8))
        self.norm = nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.ones(8))
        self.layer = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.loose = [torch.randn(8, 8, requires_grad=True)]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.tokens(tokens) + self.position) * self.scale
        return F.linear(self.layer(x), self.loose[0])


def test_what_is_skipped_has_its_reason() -> None:
    model = Mixed()
    traced = trace_model(model, torch.randint(0, 10, (2, 5)))
    reasons = {skipped.name: skipped.reason for skipped in traced.skipped}
    assert reasons["tokens.weight"].startswith("embedding")
    assert reasons["norm.weight"].startswith("normalisation")
    assert "added" in reasons["position"]
    assert "one value per channel" in reasons["scale"]
    assert "not reached" in reasons["unused.weight"]
    assert "not registered" in reasons["tensor [8, 8]"]
    assert "layer.bias" not in reasons
    assert {skipped.name: skipped.cause for skipped in traced.skipped} == {
        "tensor [8, 8]": SkipCause.UNREGISTERED,
        "position": SkipCause.NO_PRODUCT,
        "scale": SkipCause.PER_CHANNEL,
        "tokens.weight": SkipCause.EMBEDDING,
        "norm.weight": SkipCause.NORM,
        "norm.bias": SkipCause.NORM,
        "unused.weight": SkipCause.UNREACHED,
        "unused.bias": SkipCause.UNREACHED,
    }
    assert traced.coverage.weights == 0.5  # the loose matrix reaches an operation and cannot be masked
    assert [layer.name for layer in traced.layers] == ["layer"]


@pytest.mark.parametrize("cause", [cause for cause in SkipCause if cause is not SkipCause.DTYPE])
def test_a_run_folder_gives_the_cause_of_what_was_skipped_back(cause: SkipCause) -> None:
    skipped = Skipped("a", cause, (2, 3), dtype="torch.complex64")
    assert SkippedLayer(name="a", reason=skipped.reason).cause is cause


def test_a_reason_that_is_not_known_has_no_cause() -> None:
    assert SkippedLayer(name="a", reason="normalisations differ").cause is None


def test_weights_only_used_in_training_are_found() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.aux = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.body(x)
            return x + self.aux(x) if self.training else x

    traced = trace_model(Auxiliary(), torch.randn(2, 4))
    assert {layer.name: layer.rung for layer in traced.layers} == {"body": 1, "aux": 3}
    masked = mask_model(traced).train()
    (masked(torch.randn(2, 4)).sum()).backward()
    assert masked.model.aux.weight.grad is not None


def test_an_example_that_fails_in_training_mode_is_noted() -> None:
    traced = trace_model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(1, 4))
    assert len(traced.layers) == 1
    assert "eval mode only" in traced.notes[0]


def test_dict_tuple_and_keyword_inputs() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor, extra: dict[str, torch.Tensor], *, twice: bool = False, **rest: object):
            out = self.a(x) + self.b(extra["y"])
            return {"out": out * 2 if twice else out, "pair": (out, x)}

    x, extra = torch.randn(2, 4), {"y": torch.randn(2, 5)}
    for example in ((x, extra), {"x": x, "extra": extra, "twice": True}, Inputs((x,), {"extra": extra})):
        traced = trace_model(Several(), example)
        assert [layer.name for layer in traced.layers] == ["a", "b"]
        masked = mask_model(traced)
        assert as_inputs(example, masked.model).call(masked)["pair"][0].shape == (2, 3)


def test_a_dict_that_is_one_argument() -> None:
    class Batch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.a(batch["x"])

    assert trace_model(Batch(), {"x": torch.randn(2, 4)}).layers[0].name == "a"


def test_a_model_that_does_not_run_says_on_what() -> None:
    with pytest.raises(ModelError) as caught:
        trace_model(nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 5))
    assert "float32[2, 5]" in caught.value.cause
    assert "example_inputs" in caught.value.hint
    assert caught.value.exit_code == 2


def test_lazy_modules_are_refused_with_a_hint() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ModelError, match="without a shape"):
        trace_model(model, torch.randn(2, 5))


def test_a_model_that_cannot_be_copied_is_refused_with_a_hint() -> None:
    model = nn.Linear(2, 2)
    model.kept = threading.Lock()
    with pytest.raises(ModelError, match="cannot be copied"):
        trace_model(model, torch.randn(2, 2))


def test_tied_weights_are_one_layer_with_two_names() -> None:
    (layer,) = trace_model(TiedHead(), torch.randint(0, 11, (2, 5))).layers
    assert layer.aliases == ("embed.weight", "head.weight")


def test_complex_weights_are_left_alone() -> None:
    traced = trace_model(nn.Linear(3, 3, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64))
    assert not traced.layers
    assert "complex64" in traced.skipped[0].reason


def test_a_compiled_part_is_traced_inside() -> None:
    inner = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    traced = trace_model(nn.Sequential(nn.Linear(4, 4), inner), torch.randn(2, 4))
    assert [layer.name for layer in traced.layers] == ["0", "1._orig_mod.0"]
    assert traced.coverage.weights == 1


def test_detection_models_are_masked() -> None:
    torchvision = torchvision_module()
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3, score_thresh=1.1
    )
    inputs = Inputs(([torch.rand(3, 64, 64), torch.rand(3, 64, 96)],))
    traced = trace_model(model, inputs)
    assert traced.rung > 1  # nothing is detected here, so that nms, missing beside a CPU-only torch, is not called
    assert traced.coverage.weights == 1
    assert len(mask_model(traced).remaining()) == len(traced.layers) > 50


def test_layers_of_torch_alone_have_no_place_in_this_package(tmp_path):
    plan = plan_sweep(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (TRAIN, TEST), alphas=[1e-3], steps=4, out=tmp_path / "run"
    )
    assert [layer.place for layer in plan.task.traced.layers] == [""]
