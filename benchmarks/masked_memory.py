"""Memory of masked training over dense training: the peak of all tensors, weights and optimizer among them.

    python benchmarks/masked_memory.py [--model NAME ...] [--backend compiled eager grouped] [--out FILE]

Both are trained for two steps with SGD and momentum, in the order of a usual loop: gradients are dropped, forward,
backward, step. What is allocated is followed in torch's dispatcher. The bar is 1.3.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional as F

from dst_analyze import mask_model
from dst_analyze.masking.kernels.grouped_backend import GROUPED
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.sweep.engines.resources import gigabytes, peak_memory

BAR = 1.3


class Transformer(nn.Module):
    """Twelve blocks of width 768 on tokens."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
        self.tokens, self.blocks = nn.Embedding(8000, 768), nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.tokens(x)).mean(1))


def vgg(batch: int) -> tuple[nn.Module, torch.Tensor]:
    features = torchvision_module().models.vgg16_bn().features
    return nn.Sequential(features, nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)), torch.randn(
        batch, 3, 32, 32
    )


def transformer(batch: int) -> tuple[nn.Module, torch.Tensor]:
    return Transformer(), torch.randint(0, 8000, (batch, 64))


MODELS: dict[str, tuple[Callable[[int], tuple[nn.Module, torch.Tensor]], tuple[int, ...]]] = {
    "vgg-16": (vgg, (16, 64)),
    "transformer-12": (transformer, (1, 8)),
}


@contextmanager
def computed_by(backend: str) -> Iterator[str]:
    """Let masks be computed by this backend; "grouped" is for GPUs, and taken on the CPU here."""
    if backend != "grouped":
        yield backend
        return
    with mock.patch("dst_analyze.masking.masks.kernels_on", return_value=GROUPED):
        yield "eager"


def peak(make: Callable[[int], tuple[nn.Module, torch.Tensor]], batch: int, backend: str | None) -> int:
    """Return the peak bytes of two steps, dense without a backend."""

    def run() -> None:
        torch.manual_seed(0)
        model, x = make(batch)
        y = torch.randint(0, 10, (batch,))
        if backend is not None:
            # Training needs no copy of the model beside the masked one.
            masked = mask_model(model, x[:2], backend=backend, form="modules")  # type: ignore[arg-type]
            del model
            trained: nn.Module = masked
        else:
            trained = model
            del model
        optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3, momentum=0.9)
        steps.append(peak_memory(lambda: [step(trained, optimizer, x, y) for _ in range(2)]))
        steps.append(sum(p.nbytes for p in trained.parameters()) + sum(b.nbytes for b in trained.buffers()))

    steps: list[int] = []
    run()
    return sum(steps)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument(
        "--backend", nargs="+", choices=["compiled", "eager", "grouped"], default=["compiled", "grouped"]
    )
    parser.add_argument("--out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["model,batch,backend,dense,masked,ratio,bar"]
    print(lines[0])
    for name in given.model:
        make, sizes = MODELS[name]
        for batch in sizes:
            dense = peak(make, batch, None)
            for backend in given.backend:
                with computed_by(backend) as asked:
                    masked = peak(make, batch, asked)
                cells = (name, batch, backend, gigabytes(dense), gigabytes(masked), round(masked / dense, 3), BAR)
                lines.append(",".join(map(str, cells)))
                print(lines[-1], flush=True)
    if given.out:
        Path(given.out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
