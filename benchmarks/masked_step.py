"""Cost of masking: one masked training step over one dense step, interleaved, one thread, same optimizer.

    python benchmarks/masked_step.py [--model NAME ...] [--threshold vector scalar matrix] [--repeats 60] [--out FILE]
    python benchmarks/masked_step.py --device cuda --out gpu.csv    # the table to send back, see docs/how-to/gpu.md

A masked step is all of it: masked forward with the reset check, backward, the sparsity gradient, optimizer. ``plain``
is `mask_model(model, x)` without any option, as from a notebook. Reported is the median of the ratios of neighbouring
steps, so that a slow moment of a shared machine hits both sides alike; ``added`` are the thresholds as a share of the
model's parameters.

On a GPU, the first lines say what computes the masks, whether it agrees with the eager loops there, and whether a step
waits for the device (``torch.cuda.set_sync_debug_mode``).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional as F

from dst_analyze.masking.kernels.choice import agree_on, kernels_on
from dst_analyze.masking.layer import Threshold
from dst_analyze.masking.masked import MaskedModel, mask_model
from dst_analyze.masking.masked_weight import EAGER, Masking
from dst_analyze.model.loading.torchvision_compat import torchvision_module

WAYS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "modules": {"backend": "compiled", "form": "modules"},
    "graph": {"backend": "compiled", "form": "graph"},
    "plain": {},
}
GPU_WAYS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "modules": {"form": "modules"},
    "graph": {"form": "graph"},
    "plain": {},
}
BARS = {"lenet-300-100": 1.15, "vgg-16": 1.02, "resnet-18": 1.02, "lstm": 1.02}


class Rows(nn.Module):
    """An image read row by row: the paper's LSTM-a."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 128, num_layers=2, batch_first=True)
        self.out = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def lenet() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)]
    return nn.Sequential(*layers), torch.randn(64, 1, 28, 28)


def vgg() -> tuple[nn.Module, torch.Tensor]:
    plan = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]
    layers: list[nn.Module] = []
    width = 3
    for step in plan:
        if step == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(width, step, 3, padding=1), nn.BatchNorm2d(step), nn.ReLU()]
            width = step
    layers += [nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), torch.randn(64, 3, 32, 32)


def resnet() -> tuple[nn.Module, torch.Tensor]:
    return torchvision_module().models.resnet18(num_classes=10), torch.randn(16, 3, 96, 96)


def lstm() -> tuple[nn.Module, torch.Tensor]:
    return Rows(), torch.randn(64, 28, 28)


MODELS = {"lenet-300-100": lenet, "vgg-16": vgg, "resnet-18": resnet, "lstm": lstm}


def stepper(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """One training step as a closure; a masked model's step includes all that masking adds."""
    y = torch.randint(0, 10, (len(x),), device=x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    masked = model if isinstance(model, MaskedModel) else None

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if masked is not None:
            masked.add_sparsity_gradient(1e-5)
        optimizer.step()

    return step


def wait(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def measure(name: str, repeats: int, thresholds: Sequence[Threshold], device: str) -> list[dict[str, object]]:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model, x = model.to(device), x.to(device)
    ways = WAYS if device == "cpu" else GPU_WAYS
    steps, added = {"dense": stepper(model, x)}, {}
    for way, threshold in product(ways, thresholds):
        masked = mask_model(model, x[:2], threshold=threshold, **ways[way])
        steps[way + threshold] = stepper(masked, x)
        added[threshold] = masked.thresholds.numel() / sum(p.numel() for p in model.parameters())
    for step in steps.values():
        for _ in range(3):
            step()
    seconds: dict[str, list[float]] = {key: [] for key in steps}
    for _ in range(repeats):
        for key, step in steps.items():
            wait(device)
            start = time.perf_counter()
            step()
            wait(device)
            seconds[key].append(time.perf_counter() - start)
    rows = []
    for way, threshold in product(ways, thresholds):
        ratios = [a / b for a, b in zip(seconds[way + threshold], seconds["dense"], strict=True)]
        rows.append(
            {
                "device": device,
                "model": name,
                "way": way,
                "threshold": threshold,
                "added": round(added[threshold], 5),
                "ratio": round(statistics.median(ratios), 3),
                "bar": BARS[name],
                "dense_ms": round(1e3 * statistics.median(seconds["dense"]), 2),
            }
        )
    return rows


def describe(device: str) -> list[str]:
    """Return what computes the masks on a device and whether it is right there, as lines of comments."""
    here = torch.device(device)
    gpu = device == "cuda"
    name = torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
    version = importlib.metadata.version("triton") if importlib.util.find_spec("triton") else "none"
    lines = [f"{name}; torch {torch.__version__}, Triton {version}, Python {platform.python_version()}"]
    kernels = kernels_on(here, "compiled")
    lines.append(f"masks: {type(kernels).__name__}; agrees with the eager loops: {agree_on(here, kernels)}")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        masking = Masking("long-tail", ((300, 784), (64, 90, 9), (500,)), ((300, 1), (1, 90, 1), (1,)), (300, 90, 1))
        weights = [torch.randn(view, device=here).to(dtype) for view in masking.views]
        grads = [torch.randn_like(weight) for weight in weights]
        given = masking, torch.rand(391, device=here), weights, grads
        ours, theirs = (loops.backward(*given) for loops in (kernels, EAGER))
        pairs = [(one, two) for one, two in zip(ours[0], theirs[0], strict=True) if one is not None and two is not None]
        worst = max(float((one - two).abs().max()) for one, two in pairs)
        sums = float(((ours[1] - theirs[1]).abs() / theirs[1].abs().clamp(min=1e-3)).max())
        lines.append(f"{dtype}: dW differs from the eager loops by {worst:.3g} at most, dt by {sums:.3g} of its size")
    if gpu:
        lines.append(f"a masked step waits for the device: {_waits()}")
    return [f"# {line}" for line in lines]


def _waits() -> str:
    model, x = lenet()
    step = stepper(mask_model(model.cuda(), x[:2].cuda(), form="modules"), x.cuda())
    for _ in range(3):
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return f"yes, {error}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=sorted(MODELS))
    parser.add_argument("--threshold", nargs="+", choices=get_args(Threshold), default=["vector"])
    parser.add_argument("--repeats", type=int, default=0, help="steps of each kind (default: by model)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = describe(options.device)
    print(*lines, sep="\n", flush=True)
    lines += ["device,model,way,threshold,added,ratio,bar,dense_ms"]
    for name in options.model or MODELS:
        repeats = options.repeats or {"lenet-300-100": 400, "lstm": 60}.get(name, 15)
        for row in measure(name, repeats, options.threshold, options.device):
            lines.append(",".join(str(value) for value in row.values()))
            print(lines[-1], flush=True)
    if options.out:
        with open(options.out, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
