"""Training on a device: no wait in a step, losses read later, half precision, and moved batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dst_analyze import mask_model, run_sweep
from dst_analyze.errors import OptionError
from dst_analyze.masking.kernels.grouped_backend import GROUPED
from dst_analyze.run.config import SweepConfig
from dst_analyze.sweep.training.device import READ_EVERY, Device, to_device
from dst_analyze.sweep.training.objective import Objective
from dst_analyze.sweep.training.recipe import Recipe
from dst_analyze.sweep.training.train import DivergedError, evaluate, train

STEPS = 130
_READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero"}


@dataclass(frozen=True)
class Distant(Device):
    """The meta device, whose values nothing can read, in the place of a GPU's."""

    name: str = "meta"

    def precision(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class Late(Device):
    """The CPU, read as late as a GPU."""

    @property
    def on_host(self) -> bool:
        return False


class Waits(TorchDispatchMode):
    """A count of what waits for the device: every read of a value there. Zeros are read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        distant = any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in tree_leaves((args, kwargs)))
        name = func.name().partition(".")[0]
        if distant and name in _READS:
            self.seen.append(name)
            return 0.0
        if distant and name == "aten::_to_copy" and kwargs.get("device") == torch.device("cpu"):
            self.seen.append(name)
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        return func(*args, **kwargs)


def net() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 10)]
    return nn.Sequential(*layers)


def batches(number: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    for _ in range(number):
        yield torch.rand(8, 1, 8, 8, generator=random), torch.randint(0, 10, (8,), generator=random)


def recipe(**options: Any) -> Recipe:
    return Recipe.of(SweepConfig.checked(model="m.py:Net", alphas=[1e-3, 1e-2], **options), STEPS)


def trained(
    device: Device, losses: list[float], *, loss: Any = None, looks_every: int = 1, steps: int = STEPS,
    on_collapse: Any = "reset", **options: Any
) -> nn.Module:  # fmt: skip
    torch.manual_seed(0)
    how: dict[str, Any] = {
        "threshold_scale": "layer",
        "on_collapse": on_collapse,
        "form": "modules",
    }
    masked = mask_model(net(), torch.rand(2, 1, 8, 8), backend="eager", **how)
    masked.to(device.name)
    train(
        masked, batches(), Objective(masked.model, loss), *recipe(**options).start(masked, alpha=10.0), device,
        steps=steps, on_step=lambda step, value: losses.append(value) or step == 128, looks_every=looks_every,
    )  # fmt: skip
    return masked


@pytest.mark.parametrize(("optimizer", "on_collapse"), [("sgd", "hold"), ("adamw", "reset")])
def test_no_step_waits_for_the_device(optimizer: str, on_collapse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dst_analyze.masking.masks.kernels_on", lambda device, backend: GROUPED)
    losses: list[float] = []
    with Waits() as waits:
        trained(Distant(), losses, looks_every=53, steps=56, optimizer=optimizer, on_collapse=on_collapse)
    assert len(losses) == 56
    # After 50, 53 and 56 steps: the losses must not pile up, someone looks, and the training ends.
    assert waits.seen == ["aten::_to_copy"] * 3


def test_a_wait_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dst_analyze.masking.masks.kernels_on", lambda device, backend: GROUPED)

    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        found = F.cross_entropy(outputs, batch[1])
        found.item()
        return found

    with Waits() as waits:
        trained(Distant(), [], loss=loss, steps=5)
    assert waits.seen.count("aten::_local_scalar_dense") == 5


def test_scoring_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net().to("meta")
    with Waits() as waits:
        evaluate(model, list(batches(7)), Objective(model), Distant())
    assert len(waits.seen) == 1


def test_losses_that_are_read_later_are_the_same() -> None:
    found = []
    for device in (Device(), Late()):
        losses: list[float] = []
        masked = trained(device, losses, looks_every=32)
        found.append((losses, masked.state_dict()))
    assert len(found[0][0]) == len(found[1][0]) == 128
    assert found[0][0] == found[1][0]
    assert found[0][1].keys() == found[1][1].keys()
    differing = [name for name, value in found[0][1].items() if not torch.equal(value, found[1][1][name])]
    assert not differing


@pytest.mark.parametrize("at", [1, 49, 50, 51, 128])
def test_a_divergence_is_dated_to_its_step(at: int) -> None:
    for device in (Device(), Late()):
        calls, seen = [0], list[int]()

        def loss(outputs: torch.Tensor, batch: Any, calls: Any = calls) -> torch.Tensor:
            calls[0] += 1
            return F.cross_entropy(outputs, batch[1]) * (math.inf if calls[0] == at else 1)

        model = net()
        with pytest.raises(DivergedError) as error:
            train(
                model, batches(), Objective(model, loss), *recipe().start(model), device,
                steps=STEPS, on_step=lambda step, value, seen=seen: seen.append(step) or False,
            )  # fmt: skip
        assert error.value.step == at
        assert seen == list(range(1, at))
        assert calls[0] - at < READ_EVERY


def test_a_sweep_that_reads_late_writes_the_same_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(120, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    data = (x, (x.mean((1, 2, 3)) * 1000).long() % 10)
    options = {"alphas": [1e-6, 1e-4], "steps": 70, "warm_up": 30, "progress": False, "device": "cpu"}
    torch.manual_seed(0)
    model = net()
    for name in ("now", "later"):
        if name == "later":
            monkeypatch.setattr(Device, "on_host", property(lambda self: False))
        run_sweep(model, data, out=tmp_path / name, **options)
    names = sorted(path.relative_to(tmp_path / "now") for path in (tmp_path / "now").rglob("*.csv"))
    assert len(names) > 3
    for name in names:
        assert (tmp_path / "now" / name).read_bytes() == (tmp_path / "later" / name).read_bytes(), name


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_float16_trains_with_a_gradient_scaler(optimizer: str) -> None:
    found = []
    for device in (Device(), Device(amp=True), Device(amp=True, amp_dtype="float16")):
        losses: list[float] = []
        masked = trained(device, losses, optimizer=optimizer)
        assert masked.thresholds.dtype == torch.float32
        found.append((losses[-1], masked.model_remaining(), masked.thresholds.mean().item()))
    full, brain, half = found
    assert half == pytest.approx(full, rel=0.1)
    assert brain == pytest.approx(full, rel=0.1)
    assert len({full, brain, half}) == 3


def test_small_gradients_survive_in_float16() -> None:
    """Without the scaler, a loss this small has gradients of zero in float16."""

    def tiny(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return outputs.square().mean() * 1e-7

    for scaled in (True, False):
        torch.manual_seed(0)
        model = net()
        before = model[-1].weight.detach().clone()
        device = Device(amp=True, amp_dtype="float16")
        if not scaled:
            object.__setattr__(device, "scaler", lambda: None)
        train(
            model, batches(), Objective(model, tiny), *recipe(lr=1e3).start(model), device,
            steps=20, on_step=lambda step, value: False,
        )  # fmt: skip
        moved = float((model[-1].weight.detach() - before).abs().max())
        assert (moved > 1e-7) == scaled


def test_a_fused_step_is_left_out_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds and their optimizer stay as they are in a step that the gradient scaler leaves out."""
    found = []
    for fused in (True, False):
        monkeypatch.setattr("dst_analyze.masking.training.threshold_training.on_host", lambda t, f=fused: not f)
        torch.manual_seed(0)
        masked = mask_model(net(), torch.rand(2, 1, 8, 8), form="modules", backend="eager").train()
        optimizer = torch.optim.SGD(masked.model.parameters(), lr=0.05, momentum=0.9, fused=fused)
        recipe().train_thresholds(masked, 0.5).follow(optimizer)
        scaler, seen = torch.amp.GradScaler("cpu", init_scale=2.0**12), []
        for step, (x, y) in enumerate(batches(9)):
            masked.zero_grad()
            loss = F.cross_entropy(masked(x), y) * (math.inf if step == 5 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append(masked.thresholds.detach().clone())
        assert torch.equal(seen[5], seen[4])
        assert not torch.equal(seen[6], seen[5])
        found.append(seen[-1])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_half_precision_that_a_gpu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dst_analyze.sweep.training.device._AVAILABLE", {"cuda": lambda: True, "cpu": lambda: True})
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    with pytest.raises(OptionError, match="Tesla V100 does not compute in bfloat16") as error:
        Device.chosen("auto", amp=True)
    assert "--amp-dtype float16" in str(error.value.hint)
    assert Device.chosen("auto", amp=True, amp_dtype="float16").describe() == "cuda, float16 where safe"
    with pytest.raises(OptionError, match="no effect without --amp"):
        Device.chosen("cpu", amp_dtype="float16")


def test_batches_go_to_a_gpu_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: seen.append("pinned") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kwargs: seen.append((args, kwargs["non_blocking"])))
    to_device(torch.ones(2), "cuda")
    to_device(torch.ones(2), "cpu")
    assert seen == ["pinned", (("cuda",), True), (("cpu",), False)]


def test_the_configuration_of_an_earlier_run_keeps_its_digest() -> None:
    plain, half = (SweepConfig.checked(model="m", amp=True, amp_dtype=kind) for kind in ("bfloat16", "float16"))
    assert "amp_dtype" not in plain.model_dump(mode="json")
    assert plain.digest != half.digest
    assert SweepConfig.model_validate(plain.model_dump(mode="json")) == plain
    assert SweepConfig.model_validate(half.model_dump(mode="json")) == half
