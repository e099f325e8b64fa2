"""Masked models, for every way a weight can be used: equality, gradients, resets, and what comes back out."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from zoo import ZOO, Residual, TiedCoder, Twice

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.masking.kernels.c_backend import compiled_kernels
from dst_analyze.masking.masked import MaskedModel, mask_model
from dst_analyze.model.tracing.trace import trace_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:LSTM with projections is not supported with oneDNN", "ignore:.*nested_tensor.*", "ignore:.*Nested Tensor.*"
)
everything = pytest.mark.parametrize("name", sorted(ZOO))


def built(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, x = ZOO[name].build().to(dtype), ZOO[name].inputs()
    return model, x.to(dtype) if x.is_floating_point() else x


def set_thresholds(masked: MaskedModel, low: float = -0.05, high: float = 0.3) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for thresholds in masked.layer_thresholds().values():
            thresholds.copy_(low + (high - low) * torch.rand(thresholds.shape, generator=generator))


def loss_of(model: nn.Module, x: torch.Tensor, seed: int = 2) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.sin(model(x)).sum()


@everything
def test_layers_and_rows(name: str) -> None:
    model, x = built(name)
    traced = trace_model(model, x)
    assert {layer.name: layer.layout.rows for layer in traced.layers} == ZOO[name].rows
    assert traced.coverage.weights == 1


@everything
def test_with_thresholds_at_zero_outputs_are_equal_to_the_bit(name: str) -> None:
    model, x = built(name)
    masked = mask_model(model, x)
    for training in (True, False):
        outputs = []
        for module in (model, masked):
            module.train(training)
            torch.manual_seed(3)
            outputs.append(module(x))
        assert torch.equal(*outputs)
    assert set(masked.remaining().values()) == {1.0}


@everything
@pytest.mark.parametrize("threshold", ["vector", "scalar", "matrix"])
def test_gradients_are_the_papers(name: str, threshold: str) -> None:
    """dP comes from the plain model with P written in; dW and dt are then the formulas of appendix A.3."""
    model, x = built(name, torch.float64)
    masked = mask_model(model, x, threshold=threshold)
    set_thresholds(masked)
    plain = masked.unmasked()
    masked.auto_reset = False
    torch.testing.assert_close(loss_of(masked, x), loss_of(plain, x), rtol=1e-12, atol=1e-12)
    loss_of(masked, x).backward()
    loss_of(plain, x).backward()
    gradients = masked.thresholds.grad.split([layer.count for layer in masked.layers])
    for layer, got in zip(masked.layers, gradients, strict=True):
        weight = masked.model.get_parameter(layer.aliases[0])
        w = weight.detach().view(layer.layout.view)
        t = masked.layer_thresholds()[layer.name]
        d_p = plain.get_parameter(layer.aliases[0]).grad.view(layer.layout.view)
        q = w.abs() - t
        near, far = q.abs() <= 0.4, (q.abs() > 0.4) & (q.abs() <= 1)
        h = near * (2 - 4 * q.abs()) + far * torch.full_like(q, 0.4)
        d_w = d_p * (q > 0) + d_p * w * h * w.sign()
        d_t = -(d_p * w * h)
        axes = [axis for axis in range(w.ndim) if t.shape[axis] == 1]
        torch.testing.assert_close(weight.grad.view_as(w), d_w, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(
            got.view(t.shape), d_t.sum(axes, keepdim=True) if axes else d_t, rtol=1e-10, atol=1e-11
        )
    others = {name for name, _ in masked.model.named_parameters()} - {
        a for layer in masked.layers for a in layer.aliases
    }
    for name_ in others:
        torch.testing.assert_close(masked.model.get_parameter(name_).grad, plain.get_parameter(name_).grad)


@everything
def test_unmasked_is_an_ordinary_model_with_the_zeros_in_it(name: str) -> None:
    model, x = built(name)
    masked = mask_model(model, x).eval()
    set_thresholds(masked)
    plain = masked.unmasked()
    assert type(plain) is type(model) or "Parametrized" in type(plain).__name__
    assert list(plain.state_dict()) == list(model.state_dict())
    fresh = ZOO[name].build()
    fresh.load_state_dict(plain.state_dict())
    assert torch.equal(fresh.eval()(x), masked(x))
    zeros = {layer: int((~mask).sum()) for layer, mask in masked.masks().items()}
    assert sum(zeros.values()) > 0
    for layer in masked.layers:
        assert int((plain.get_parameter(layer.aliases[0]) == 0).sum()) == zeros[layer.name]
    assert torch.equal(model.eval()(x), built(name)[0].eval()(x))


@everything
def test_the_original_is_untouched(name: str) -> None:
    model, x = built(name)
    model.eval()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    masked = mask_model(model, x)
    set_thresholds(masked)
    optimizer = torch.optim.SGD(masked.parameters(), lr=0.1)
    (loss_of(masked, x) + masked.sparsity_loss()).backward()
    optimizer.step()
    assert all(not module.training for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    torch.set_rng_state(state)
    mask_model(model, x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(compiled_kernels() is None, reason="no C compiler on this machine")
@everything
def test_the_compiled_operator_trains_the_same(name: str) -> None:
    model, x = built(name)
    results = []
    for backend in ("eager", "compiled"):
        masked = mask_model(model, x, backend=backend)
        assert masked.masking.backend == backend
        set_thresholds(masked)
        optimizer = torch.optim.SGD(masked.parameters(), lr=0.05)
        for step in range(3):
            optimizer.zero_grad()
            (loss_of(masked, x, seed=step) + 0.01 * masked.sparsity_loss()).backward()
            optimizer.step()
        results.append((dict(masked.named_parameters()), masked.remaining()))
    for key, value in results[0][0].items():
        torch.testing.assert_close(results[1][0][key], value, rtol=1e-4, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], abs=0.05)


def test_tied_weights_share_one_mask_wherever_they_are_used() -> None:
    x = torch.randn(3, 6)
    masked = mask_model(TiedCoder(), x).eval()
    assert masked.layers[0].aliases == ("encoder.weight", "decoder.weight")
    set_thresholds(masked, 0.1, 0.3)
    plain = masked.unmasked()
    assert plain.encoder.weight is plain.decoder.weight
    assert torch.equal(plain(x), masked(x))


def test_a_module_used_twice_is_masked_once() -> None:
    x = torch.randn(3, 6)
    masked = mask_model(Twice(), x)
    assert list(masked.remaining()) == ["layer"]
    assert masked.thresholds.numel() == 6


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def test_each_gate_has_its_own_thresholds() -> None:
    x = torch.randn(4, 2, 6)
    sizes = {kind: mask_model(Gates(), x, threshold=kind).thresholds.numel() for kind in ("scalar", "vector", "matrix")}
    assert sizes == {"scalar": 2 * 4, "vector": 2 * 4 * 5, "matrix": 4 * 5 * 6 + 4 * 5 * 5}


def test_a_collapsed_layer_is_reset_before_the_step_and_counted() -> None:
    x = torch.randn(2, 3, 7, 7)
    masked = mask_model(Residual(), x)
    with torch.no_grad():
        masked.layer_thresholds()["body.0"].fill_(100)
    assert masked.remaining()["body.0"] == 0
    masked.eval()
    masked(x)
    assert masked.resets["body.0"] == 0  # evaluation changes nothing
    masked.train()
    masked(x).sum().backward()
    assert masked.resets == {"stem.0": 0, "body.0": 1, "head": 0}
    assert masked.remaining()["body.0"] == 1
    assert masked.model.body[0].weight.grad is not None
    with torch.no_grad():
        masked.layer_thresholds()["head"].fill_(100)
    assert masked.reset_collapsed() == ["head"]
    assert masked.reset_collapsed() == []


@pytest.mark.parametrize("kept", [1, 2])
def test_the_reset_fires_at_one_per_cent_and_not_above(kept: int) -> None:
    model = nn.Sequential(nn.Linear(100, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(100)[None] / 100)
    masked = mask_model(model, torch.randn(2, 100))
    with torch.no_grad():
        masked.thresholds.fill_((99.5 - kept) / 100)
    assert masked.remaining()["0"] == kept / 100
    assert masked.reset_collapsed() == (["0"] if kept == 1 else [])


def test_recurrent_layers_are_never_reset() -> None:
    x = torch.randn(4, 2, 6)
    masked = mask_model(Gates(), x)
    with torch.no_grad():
        masked.thresholds.fill_(100)
    masked(x)
    assert masked.reset_collapsed() == []
    assert masked.model_remaining() == 0


def test_training_prunes_and_learns() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 2))
    x = torch.randn(256, 20)
    y = (x[:, 0] > 0).long()
    masked = mask_model(model, x[:2])
    optimizer = torch.optim.SGD(masked.parameters(), lr=0.1, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(masked(x), y) + 1e-3 * masked.sparsity_loss()).backward()
        optimizer.step()
    assert masked.model_remaining() < 0.6
    assert (masked(x).argmax(1) == y).float().mean() > 0.95
    # the 19 inputs that say nothing are given up before the one that decides
    mask = masked.masks()["0"].float().mean(0)
    assert mask[0] > mask[1:].max()


def test_include_and_exclude() -> None:
    x = torch.randn(2, 3, 7, 7)
    assert list(mask_model(Residual(), x, include=["*.0"]).remaining()) == ["stem.0", "body.0"]
    assert list(mask_model(Residual(), x, exclude=["head", "body*"]).remaining()) == ["stem.0"]
    traced = trace_model(Residual(), x, exclude=["head"])
    assert ("head", "left out by --exclude") in [(s.name, s.reason) for s in traced.skipped]
    with pytest.raises(OptionError, match="matches no layer"):
        mask_model(Residual(), x, include=["nothing*"])
    with pytest.raises(ModelError, match="--include and --exclude leave no layer"):
        mask_model(Residual(), x, exclude=["*"])


def test_a_model_with_nothing_to_mask_says_so() -> None:
    with pytest.raises(ModelError, match="no weight reaches a matmul") as caught:
        mask_model(nn.Sequential(nn.Embedding(5, 3)), torch.tensor([1, 2]))
    assert "inspect" in caught.value.hint


@pytest.mark.parametrize("option", [{"threshold": "row"}, {"estimator": "ste"}, {"backend": "fast"}])
def test_unknown_options_name_the_choices(option: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        mask_model(Residual(), torch.randn(2, 3, 7, 7), **option)
    assert caught.value.exit_code == 2
    assert "choose one of" in caught.value.hint


def test_a_masked_model_is_not_masked_again() -> None:
    x = torch.randn(2, 3, 7, 7)
    with pytest.raises(ModelError, match="masked already") as caught:
        mask_model(nn.Sequential(mask_model(Residual(), x)), x)
    assert "unmasked()" in caught.value.hint


def test_works_under_autocast() -> None:
    x = torch.randn(2, 3, 7, 7)
    model = Residual().eval()
    masked = mask_model(model, x).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(masked(x), model(x))
        masked(x).float().sum().backward()
    assert masked.thresholds.grad.dtype == torch.float32
    assert masked.thresholds.grad.abs().sum() > 0


def test_half_precision_weights_keep_float_thresholds() -> None:
    x = torch.randn(2, 3, 7, 7, dtype=torch.bfloat16)
    masked = mask_model(Residual().bfloat16(), x)
    assert masked.thresholds.dtype == torch.float32
    masked(x).sum().backward()
    assert masked.model.head.weight.grad.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, inside dynamo
def test_works_under_torch_compile() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 7)
    masked = mask_model(Residual(), x).eval()
    set_thresholds(masked)
    results = []
    for forward in (masked, torch.compile(masked, fullgraph=True, backend="aot_eager")):
        masked.zero_grad()
        out = forward(x)
        out.sum().backward()
        results.append((out.detach(), masked.thresholds.grad.clone(), masked.model.head.weight.grad.clone()))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


def _remaining(masked: MaskedModel, queue: multiprocessing.Queue) -> None:
    queue.put((masked.remaining(), masked(torch.ones(2, 3, 7, 7)).tolist()))


def test_crosses_process_borders() -> None:
    x = torch.randn(2, 3, 7, 7)
    masked = mask_model(Residual(), x, backend="compiled" if compiled_kernels() else "eager").eval()
    set_thresholds(masked)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=_remaining, args=(masked, queue))
    worker.start()
    remaining, output = queue.get(timeout=60)
    worker.join()
    assert remaining == masked.remaining()
    assert output == masked(torch.ones(2, 3, 7, 7)).tolist()
    assert copy.deepcopy(masked).remaining() == pickle.loads(pickle.dumps(masked)).remaining() == remaining


def test_state_dict_goes_back_in() -> None:
    x = torch.randn(2, 3, 7, 7)
    masked = mask_model(Residual(), x).eval()
    set_thresholds(masked)
    other = mask_model(Residual(), x).eval()
    other.load_state_dict(masked.state_dict())
    assert torch.equal(other(x), masked(x))
    assert other.remaining() == masked.remaining()


def test_works_on_meta() -> None:
    with torch.device("meta"):
        model, x = Residual(), torch.empty(2, 3, 7, 7)
    masked = mask_model(model, x)
    assert masked.thresholds.device.type == "meta"
    masked.auto_reset = False
    assert masked(x).shape == (2, 4)


def test_a_billion_parameters_are_planned_in_under_a_gigabyte() -> None:
    script = """
import torch
from torch import nn
from dst_analyze.masking.masked import mask_model
with torch.device("meta"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)) for _ in range(8)])
    masked = mask_model(model, torch.empty(2, 4096))
print(sum(p.numel() for p in model.parameters()), open('/proc/self/status').read().split('VmHWM:')[1].split()[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    parameters, kilobytes = map(int, done.stdout.split())
    assert parameters > 1_000_000_000
    assert kilobytes < 1_000_000


def test_another_mode_and_hooks_run_as_in_the_original() -> None:
    """Control flow on values, which no graph keeps."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
            layer = self.a if x.sum() > 0 else self.b
            return {"out": layer(x) * scale, "flag": torch.tensor(self.training)}

    model = Branching()
    masked = mask_model(model, torch.ones(2, 4), include=["a"])
    with torch.no_grad():
        masked.layer_thresholds()["a"].fill_(100)
    masked.auto_reset = False
    assert masked(torch.ones(2, 4), scale=2.0)["out"].equal(2 * model.a.bias.expand(2, 4))
    assert masked(-torch.ones(2, 4))["out"].equal(model(-torch.ones(2, 4))["out"])
    assert masked.train()(torch.ones(2, 4))["flag"]
    assert not masked.eval()(torch.ones(2, 4))["flag"]
    calls = []
    masked.model.a.register_forward_hook(lambda *_: calls.append(1))
    masked(torch.ones(2, 4))
    assert calls == [1]


def test_an_error_in_the_forward_leaves_the_parameters_in_place() -> None:
    masked = mask_model(Residual(), torch.randn(2, 3, 7, 7))
    with pytest.raises(RuntimeError):
        masked(torch.randn(2, 5, 7, 7))
    assert all(isinstance(p, nn.Parameter) for p in masked.model.parameters())


def test_a_collapsed_layer_is_held_with_on_collapse_hold():
    """Its thresholds are lowered step by step until more than 1 % remain, never to zero; others are not touched."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3))
    x = torch.randn(4, 40)
    masked = mask_model(model, x, on_collapse="hold").train()
    with torch.no_grad():
        masked.layer_thresholds()["0"][:] = 0.5  # above all weights
        masked.layer_thresholds()["2"][:] = 0.05
    for _ in range(30):
        masked(x)
    assert 0.01 < masked.remaining()["0"] < 0.2
    assert masked.holds["0"] > 5
    assert masked.holds["2"] == 0
    assert sum(masked.resets.values()) == 0
    assert torch.equal(masked.layer_thresholds()["2"].flatten(), torch.full((3,), 0.05))
    held = masked.holds["0"]
    masked.eval()(x)
    assert masked.holds["0"] == held
    with torch.no_grad():
        masked.train().model[0].weight.zero_()  # nothing can be held of what is not there
    masked(x)
    assert masked.remaining()["0"] == 0


def test_an_unknown_action_on_collapse_is_refused():
    with pytest.raises(OptionError, match="drop"):
        mask_model(nn.Linear(4, 4), torch.randn(2, 4), on_collapse="drop")
