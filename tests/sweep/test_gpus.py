"""Trials on GPUs: how many, on which one, with how much memory. What torch says of GPUs is made up here."""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from dst_analyze.errors import DataError, OptionError
from dst_analyze.run.events import ignore_event
from dst_analyze.run.record import TrialKey
from dst_analyze.sweep.engines.gpus import next_gpu, peak_gpu_memory, share_of_gpu
from dst_analyze.sweep.engines.jobs import JobResult, Trial
from dst_analyze.sweep.engines.process_engine import ProcessEngine
from dst_analyze.sweep.engines.worker import work
from dst_analyze.sweep.engines.workers import Workers
from dst_analyze.sweep.planning.plan import plan_sweep, plan_task
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.trial import Task

GB = 10**9
X = torch.rand(64, 6, generator=torch.Generator().manual_seed(0))
DATA = (X, (X[:, 0] > 0.5).long())


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let torch find GPUs with this many free bytes."""

    def found(*free: int) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index=None: (free[index or 0], 80 * GB))

    return found


def task(memory: int, *, seeds: int = 1) -> Task:
    planned = plan_task(net(), DATA, device="cpu", steps=4)
    return replace(planned, device=Device("cuda"), gpu_memory=memory)


def test_one_trial_at_once_on_each_gpu_that_has_room(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dst_analyze.sweep.engines.workers.default_jobs", lambda threads, count, params: min(8, count))
    given = task(2 * GB)
    for free, expected in (((10 * GB,), 1), ((10 * GB, 10 * GB, GB), 2), ((GB,), 1)):
        gpus(*free)
        assert Workers().count(given, 6) == expected
    gpus(*[10 * GB] * 12)
    assert Workers().count(given, 6) == 6
    assert Workers().count(replace(given, device=Device("cpu")), 6) == 6


def test_jobs_are_refused_that_do_not_fit_into_the_memory(gpus: Any) -> None:
    given = task(2 * GB)
    gpus(10 * GB, 6 * GB)
    assert Workers(5).count(given, 9) == 5  # three and two
    with pytest.raises(
        OptionError, match=r"6 trials at once do not fit: each takes 2.6 GB .* 16 GB are free on 2 GPUs"
    ) as error:
        Workers(6).count(given, 9)
    assert error.value.place == "--jobs 6"
    assert "--jobs 5 fits" in str(error.value.hint)
    gpus(GB)
    assert Workers(1).count(given, 9) == 1  # the preflight has just trained a step there
    with pytest.raises(OptionError, match="the GPU"):
        Workers(2).count(given, 9)


def test_the_next_trial_takes_the_gpu_with_most_room() -> None:
    taken: list[int] = []
    for _ in range(5):
        taken.append(next_gpu([3, 2], taken))
    assert sorted(taken) == [0, 0, 0, 1, 1]
    assert next_gpu([1, 1], [0]) == 1
    assert next_gpu([1, 1], []) == 0


class _Process:
    """A worker that answers at once, and keeps what it was given."""

    given: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, target: Any, args: Any, daemon: bool) -> None:
        bound = inspect.signature(work).bind(*args)
        bound.apply_defaults()
        self.given.append(bound.arguments)
        self.pipe, self.job = args[2], args[1]
        self.sentinel, self._other = Pipe()
        self.exitcode = 0

    def start(self) -> None:
        self.pipe = self.pipe.send(JobResult(self.job.failed("made up", 0.0)))

    def is_alive(self) -> bool:
        return True

    def join(self) -> None: ...

    def kill(self) -> None: ...


@pytest.mark.parametrize(("device", "expected"), [("cuda", [0, 1, 0, 1]), ("cpu", [None] * 4)])
def test_workers_are_told_their_gpu(device: str, expected: list[int], gpus: Any, monkeypatch: Any) -> None:
    class Context:
        Process = _Process

        @staticmethod
        def Pipe(duplex: bool) -> Any:  # noqa: N802
            return Pipe(duplex)

    gpus(8 * GB, 8 * GB)
    _Process.given = []
    monkeypatch.setattr("dst_analyze.sweep.engines.process_engine.context", lambda: Context)
    monkeypatch.setattr("dst_analyze.sweep.engines.process_engine.start_forkserver", lambda: None)
    given = replace(task(GB), device=Device(device))
    jobs = [Trial(TrialKey(1e-5, seed)) for seed in range(4)]
    found = list(ProcessEngine(4).run(given, jobs, ignore_event))
    assert len(found) == 4
    assert [arguments["gpu"] for arguments in _Process.given] == expected


def test_shares_of_a_gpu_on_ray(gpus: Any) -> None:
    gpus(8 * GB)
    assert share_of_gpu(2, 2, 2 * GB) == 1.0
    assert share_of_gpu(4, 2, 2 * GB) == 0.5
    third = share_of_gpu(3, 1, 2 * GB)
    assert third == 0.3333
    with pytest.raises(OptionError, match="4 trials at once are 4 on each of 1 GPUs") as error:
        share_of_gpu(4, 1, 2 * GB)
    assert "--jobs 3 fits" in str(error.value.hint)


def test_ray_places_trials_by_their_share(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_engine = pytest.importorskip("dst_analyze.sweep.engines.ray_engine", reason="Ray is not installed")
    gpus(8 * GB)
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 16.0}]
    monkeypatch.setattr(ray_engine, "_nodes", lambda: nodes)
    given = task(2 * GB)
    for jobs, share, fitting in ((None, 1.0, 2), (2, 1.0, 2), (6, 0.3333, 6), (4, 0.5, 4)):
        request = ray_engine.ResourceRequest.of(given, jobs)
        assert (request.gpus, request.fitting()) == (share, fitting)
    assert ray_engine.ResourceRequest.of(replace(given, device=Device("cpu")), 6).gpus == 0


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a model on the CPU pass for one on a GPU, and its step take this many bytes for two samples, for four."""

    def steps(*peaks: int) -> None:
        left = deque(peaks)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: left.popleft())
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)

    monkeypatch.setattr("dst_analyze.sweep.training.device._AVAILABLE", {"cuda": lambda: True, "cpu": lambda: True})
    monkeypatch.setattr(Device, "moved", lambda self, batch: batch)
    monkeypatch.setattr(nn.Module, "to", lambda self, *args, **kwargs: self)
    return steps


class Greedy(nn.Module):
    """Runs out of a GPU's memory for more than eight samples."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 8 and self.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return self.net(x)


def test_what_would_fit_is_said_before_training(gpus: Any, pretend: Any, tmp_path: Any) -> None:
    gpus(1000)
    pretend(300, 500)  # of two samples and of four: a hundred each
    with pytest.raises(DataError, match="out of memory") as error:
        plan_sweep(Greedy(), DATA, device="cuda", batch_size=32, alphas=[1e-5], steps=4, out=tmp_path / "run")
    assert "a sample takes 0.1 kB: --batch-size 9 fits" in str(error.value.hint)
    assert not (tmp_path / "run").exists()


def test_the_preflight_measures_what_a_trial_takes(gpus: Any, pretend: Any) -> None:
    gpus(8 * GB)
    pretend(3 * GB)
    planned = plan_sweep(net(), DATA, device="cuda", alphas=[1e-5], steps=4).task
    assert planned.gpu_memory == 3 * GB
    assert planned.device == Device("cuda")


def test_peak_memory_is_what_comes_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 40)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 100)
    ran: list[int] = []
    assert peak_gpu_memory(lambda: ran.append(1)) == 60
    assert ran == [1]
