"""Batches of DataLoaders: the same for any number of workers, apart from training's random numbers, without leaks."""

import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

from dst_analyze import run_sweep
from dst_analyze.errors import DataError
from dst_analyze.sweep.data.batches import LoaderBatches, SeededBatches, as_batches

X, Y = torch.arange(20.0).view(10, 2), torch.arange(10) % 3


class Augmented(Dataset):
    """Samples with random numbers of all three kinds."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()]), index % 2


class Broken(Augmented):
    def __getitem__(self, index):
        raise OSError(f"image {index} is gone")


def mixed(samples):
    """Collate with random numbers, as mixing images does."""
    images = torch.stack([image for image, _ in samples])
    return images + torch.rand(()), torch.tensor([label for _, label in samples])


def trained_on(**options):
    """Return what a training that draws random numbers gets of a stream, those numbers, and what scoring gets."""
    batches = as_batches(DataLoader(Augmented(), batch_size=4, **options), place="")
    torch.manual_seed(0)
    seen = [(images, torch.rand(2)) for images, _ in islice(batches.stream(3), 8)]
    return [tensor for pair in seen for tensor in pair] + [images for images, _ in batches.once()]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"collate_fn": mixed}])
def test_batches_and_the_trainings_own_numbers_do_not_depend_on_workers(options):
    found = [trained_on(num_workers=workers, **options) for workers in (0, 2)]
    assert len(found[0]) == 19
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    first, second = found[0][0], found[0][6]  # of two epochs
    assert not torch.equal(first[:, 1:], second[:, 1:])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [RandomSampler, lambda data: WeightedRandomSampler([1.0, 2.0] * 5, 10)])
def test_a_sampler_that_draws_from_the_trainings_numbers_does_so_apart(kind, workers):
    batches = as_batches(DataLoader(Augmented(), 4, sampler=kind(Augmented()), num_workers=workers), place="")
    orders = []
    for _ in range(2):
        torch.manual_seed(len(orders))
        before = torch.get_rng_state()
        orders.append(torch.cat([images[:, 0] for images, _ in islice(batches.stream(1), 6)]))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*orders)
    assert not torch.equal(orders[0][:10], orders[0][10:20])


def test_a_sweep_gives_the_same_with_and_without_workers(tmp_path):
    class Noisy(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.randn(x.shape), y

    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    data = Noisy(x, (x[:, 0] > 0).long())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 2))
    steps = [
        run_sweep(
            model, DataLoader(data, batch_size=16, shuffle=True, num_workers=workers), alphas=[1e-5], steps=7, lr=0.1,
            out=tmp_path / str(workers),
        ).steps
        for workers in (0, 2)
    ]  # fmt: skip
    assert steps[0]["loss"].nunique() > 2
    assert steps[0].drop(columns="seconds", errors="ignore").equals(steps[1].drop(columns="seconds", errors="ignore"))


def test_loaders_of_another_kind_are_left_alone():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y, strict=True))

    class Own(DataLoader):
        pass

    data = TensorDataset(X, Y)
    for loader in (DataLoader(Stream(), batch_size=5), Own(data, batch_size=5), DataLoader(data, batch_size=None)):
        assert type(as_batches(loader, place="")) is LoaderBatches
    assert type(as_batches(DataLoader(data), place="")) is SeededBatches


def test_what_a_worker_cannot_load_is_told_with_its_line():
    batches = as_batches(DataLoader(Broken(), batch_size=5, num_workers=1), place="")
    with pytest.raises(DataError, match="loading a batch raised OSError: image 0 is gone") as error:
        next(batches.once())
    line = Broken.__getitem__.__code__.co_firstlineno + 1
    assert error.value.place.endswith(f"test_seeded_loading.py:{line}")


def test_a_workers_own_start_sees_the_users_data_set(tmp_path):
    def start(number):
        (tmp_path / str(number)).write_text(str(torch.utils.data.get_worker_info().dataset.mark))

    data = Augmented()
    data.mark = "kept"
    next(as_batches(DataLoader(data, num_workers=1, worker_init_fn=start), place="").once())
    assert (tmp_path / "0").read_text() == "kept"


def test_workers_end_with_the_training():
    before = {child.pid for child in psutil.Process().children()}
    stream = as_batches(DataLoader(Augmented(), 4, num_workers=2), place="").stream(0)
    next(stream)
    started = [child for child in psutil.Process().children() if child.pid not in before]
    assert len(started) == 2
    stream.close()
    assert psutil.wait_procs(started, timeout=20)[1] == []


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_when_the_training_is_killed(tmp_path, how):
    script = tmp_path / "endless.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "from dst_analyze.sweep.data.batches import as_batches\n"
        "loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2, num_workers=2)\n"
        "for batch in as_batches(loader, place='').stream(0):\n"
        "    print('batch', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout.readline() == b"batch\n"
        workers = psutil.Process(running.pid).children()
        running.send_signal(how)
        running.stdout.close()
        running.wait(60)
    assert len(workers) >= 2
    deadline = time.monotonic() + 30  # a worker looks for its parent every five seconds
    while any(worker.is_running() and worker.status() != "zombie" for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
