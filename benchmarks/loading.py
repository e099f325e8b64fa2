"""What loading real images costs a training step: a DataLoader with augmentation, with and without workers.

    python benchmarks/loading.py [--steps 8] [--rounds 3] [--threads 1] [--out FILE]

256 JPEG images of 500x400 made of noise are written to a temporary ImageFolder; each step decodes 32 of them, cuts and
resizes a random part to 224x224, mirrors and normalises it, and trains a small residual net. Five ways to get batches
are taken in turn, so that a slow moment of a shared machine hits all of them:

- memory: the images decoded once, as `--data imagefolder:` keeps up to a GiB, without augmentation;
- torch, 0 or 2 workers: the user's loader as torch iterates it, with new workers for each epoch;
- ours, 0 or 2 workers: the same loader as a sweep reads it, with one set of workers that goes on from epoch to epoch.

Shown is the time of a step over that of the same step on one batch that is there already, the median over rounds, and
the seconds of CPU of this process and its workers per step, which depend less on what else the machine does.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.sweep.data.batches import LoaderBatches, TensorBatches, as_batches
from dst_analyze.sweep.data.named_datasets import DataRequest, load_named_data, scaled

BATCH, CLASSES, PER_CLASS, SIZE = 32, 4, 64, 224


def write_images(root: Path) -> None:
    """Write noise that is smooth enough to compress as photographs do."""
    noise = np.random.default_rng(0)
    for label in range(CLASSES):
        (root / str(label)).mkdir(parents=True)
        for number in range(PER_CLASS):
            small = Image.fromarray(noise.integers(0, 255, (20, 24, 3), dtype=np.uint8))
            small.resize((500, 400), Image.Resampling.BICUBIC).save(root / str(label) / f"{number}.jpg", quality=90)


def net() -> nn.Module:
    resnet = torchvision_module().models.resnet
    return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as scratch:
        write_images(Path(scratch) / "images")
        lines = measure(Path(scratch) / "images", given.steps, given.rounds)
    if given.out:
        Path(given.out).write_text("\n".join(lines) + "\n")


def measure(root: Path, steps: int, rounds: int) -> list[str]:
    """Print and return one line per way to get batches."""
    vision = torchvision_module()
    transforms = vision.transforms
    augmented = vision.datasets.ImageFolder(
        str(root),
        transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.5] * 3),
            ]
        ),
    )  # fmt: skip
    kept = load_named_data(DataRequest(f"imagefolder:{root}", like=(3, SIZE, SIZE)))

    def loader(workers: int) -> DataLoader[Any]:
        return DataLoader(augmented, BATCH, shuffle=True, num_workers=workers)

    batch = next(iter(loader(0)))
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "there already": lambda: itertools.repeat(batch),
        "memory": lambda: TensorBatches(kept.train, BATCH, scaled).stream(0),
        **{f"torch, {n} workers": lambda n=n: LoaderBatches(loader(n)).stream(0) for n in (0, 2)},
        **{f"ours, {n} workers": lambda n=n: as_batches(loader(n), place="").stream(0) for n in (0, 2)},
    }
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    walls, cpus = {way: list[float]() for way in ways}, {way: list[float]() for way in ways}
    for _ in range(rounds):
        for way, stream in ways.items():
            wall, cpu = train(model, optimizer, stream(), steps)
            walls[way].append(wall)
            cpus[way].append(cpu)
    load = os.getloadavg()[0]
    lines = ["batches,time over a step on a batch that is there,CPU seconds per step,rounds,load"]
    for way in ways:
        ratio = statistics.median(a / b for a, b in zip(walls[way], walls["there already"], strict=True))
        lines.append(f'"{way}",{ratio:.2f},{statistics.median(cpus[way]):.2f},{rounds},{load:.1f}')
    print("\n".join(lines))
    return lines


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any], steps: int
) -> tuple[float, float]:
    """Return the seconds of a step by the clock and of CPU, after one that starts workers."""
    before = 0.0
    started = time.perf_counter()
    for step, (images, labels) in zip(range(steps + 1), batches, strict=False):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0:
            before, started = spent(), time.perf_counter()
    return (time.perf_counter() - started) / steps, (spent() - before) / steps


def spent() -> float:
    """Return the seconds of CPU of this process and its workers, those that have ended among them."""
    here = psutil.Process()
    times = [here.cpu_times(), *(child.cpu_times() for child in here.children())]
    return sum(each.user + each.system for each in times) + times[0].children_user + times[0].children_system


if __name__ == "__main__":
    main()
