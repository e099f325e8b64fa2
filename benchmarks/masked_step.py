"""Cost of masking: one masked training step over one dense step, interleaved, one thread, same optimizer.

    python benchmarks/masked_step.py [--model NAME ...] [--threshold vector scalar matrix] [--repeats 60] [--out FILE]

A masked step is all of it: masked forward with the reset check, backward, the sparsity gradient, optimizer. ``plain``
is `mask_model(model, x)` without any option, as from a notebook. Reported is the median of the ratios of neighbouring
steps, so that a slow moment of a shared machine hits both sides alike; ``added`` are the thresholds as a share of the
model's parameters.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional as F

from dst_analyze.masking.layer import Threshold
from dst_analyze.masking.masked import MaskedModel, mask_model
from dst_analyze.model.loading.torchvision_compat import torchvision_module

WAYS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "modules": {"backend": "compiled", "form": "modules"},
    "graph": {"backend": "compiled", "form": "graph"},
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
    y = torch.randint(0, 10, (len(x),))
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


def measure(name: str, repeats: int, thresholds: Sequence[Threshold]) -> list[dict[str, object]]:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    steps, added = {"dense": stepper(model, x)}, {}
    for way, threshold in product(WAYS, thresholds):
        masked = mask_model(model, x[:2], threshold=threshold, **WAYS[way])
        steps[way + threshold] = stepper(masked, x)
        added[threshold] = masked.thresholds.numel() / sum(p.numel() for p in model.parameters())
    for step in steps.values():
        for _ in range(3):
            step()
    seconds: dict[str, list[float]] = {key: [] for key in steps}
    for _ in range(repeats):
        for key, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[key].append(time.perf_counter() - start)
    rows = []
    for way, threshold in product(WAYS, thresholds):
        ratios = [a / b for a, b in zip(seconds[way + threshold], seconds["dense"], strict=True)]
        rows.append(
            {
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=sorted(MODELS))
    parser.add_argument("--threshold", nargs="+", choices=get_args(Threshold), default=["vector"])
    parser.add_argument("--repeats", type=int, default=0, help="steps of each kind (default: by model)")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["model,way,threshold,added,ratio,bar,dense_ms"]
    for name in options.model or MODELS:
        repeats = options.repeats or {"lenet-300-100": 400, "lstm": 60}.get(name, 15)
        for row in measure(name, repeats, options.threshold):
            lines.append(",".join(str(value) for value in row.values()))
            print(lines[-1], flush=True)
    if options.out:
        with open(options.out, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
