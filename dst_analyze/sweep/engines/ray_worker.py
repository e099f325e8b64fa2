"""What runs in a Ray worker: one job, its events and then its output, one after the other."""

from __future__ import annotations

import pickle
import platform
import queue
import threading
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import ray.cloudpickle
import torch
from torch.utils._pytree import tree_map

from dst_analyze.errors import InputError
from dst_analyze.model.user_errors import headline
from dst_analyze.run.events import Event
from dst_analyze.sweep.data.batches import TensorBatches
from dst_analyze.sweep.engines.code_bundle import CodeBundle
from dst_analyze.sweep.engines.engine import attempt
from dst_analyze.sweep.engines.jobs import Job, JobResult
from dst_analyze.sweep.engines.serialize import PickledRequest, PickledTask
from dst_analyze.version import __version__

VERSIONS = {"dst-analyze": __version__, "torch": torch.__version__}


@dataclass(frozen=True)
class UnpickleFailed:
    """A worker's answer if the task arrived but could not be unpacked."""

    why: str


def pack(payload: PickledTask | PickledRequest) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """A payload as Ray stores it once per node: the data's memory apart, where all workers of a node read the same."""
    buffers: list[pickle.PickleBuffer] = []
    file = BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(payload)
    return file.getvalue(), buffers


class _Pickler(ray.cloudpickle.CloudPickler):  # type: ignore[misc]
    """Sends what a notebook defines by its value, and the tensors of batches without copying them."""

    def reducer_override(self, thing: Any) -> Any:
        # Only these: they are cut into batches by copying, while a user's own data set may write into its tensors,
        # and this memory belongs to all.
        if isinstance(thing, TensorBatches):
            return _batches, (tree_map(_as_array, thing.tensors), thing.batch_size, thing.shape)
        return super().reducer_override(thing)


def _as_array(tensor: torch.Tensor) -> Any:
    return tensor if tensor.dtype == torch.bfloat16 else tensor.detach().contiguous().numpy()


def _batches(tensors: Any, batch_size: int, shape: Any) -> TensorBatches:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot be written to: nobody does
        return TensorBatches(tree_map(_as_tensor, tensors), batch_size, shape)


def _as_tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def work(
    payload: tuple[bytes, Sequence[Any]], bundle: CodeBundle, job: Job[Any], versions: dict[str, str]
) -> Generator[Event | JobResult | UnpickleFailed, None, None]:
    """Run one job. It runs in a thread of its own, so that its events can leave while it goes on."""
    if versions != VERSIONS:
        wrong, wanted = next((name, value) for name, value in versions.items() if VERSIONS[name] != value)
        raise InputError(
            f"a node of the Ray cluster has {wrong} {VERSIONS[wrong]}, this machine {wanted}",
            place=f"node {platform.node()}",
            hint="results would depend on where a trial runs: install the same version on all of them",
        )
    said: queue.SimpleQueue[Event | JobResult | UnpickleFailed] = queue.SimpleQueue()

    def run() -> None:
        try:
            try:
                task = pickle.loads(payload[0], buffers=payload[1])
            except Exception as error:
                said.put(UnpickleFailed(headline(error)))
                return
            said.put(JobResult(attempt(task, job, said.put)))
        except BaseException as error:  # such as SystemExit, which would end this thread only
            said.put(JobResult(job.failed(headline(error), 0.0)))

    with bundle.unpacked():
        threading.Thread(target=run, daemon=True).start()
        while True:
            message = said.get()
            yield message
            if isinstance(message, JobResult | UnpickleFailed):
                return
