"""The code of a Ray worker, which runs one job and yields its events and then its result."""

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
from dst_analyze.sweep.engines.engine import attempt
from dst_analyze.sweep.engines.jobs import Job, JobResult
from dst_analyze.sweep.engines.sending.code_bundle import CodeBundle
from dst_analyze.sweep.engines.sending.serialize import PickledRequest, PickledTask
from dst_analyze.version import __version__

VERSIONS = {"dst-analyze": __version__, "torch": torch.__version__}


@dataclass(frozen=True)
class UnpickleFailed:
    """A worker's message that the task could not be unpickled."""

    why: str


def pack(payload: PickledTask | PickledRequest) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return a payload with its buffers apart: Ray stores these once per node, shared by the node's workers."""
    buffers: list[pickle.PickleBuffer] = []
    file = BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(payload)
    return file.getvalue(), buffers


class _Pickler(ray.cloudpickle.CloudPickler):  # type: ignore[misc]
    """A pickler that sends a notebook's definitions by value, and the tensors of batches without copying."""

    def reducer_override(self, thing: Any) -> Any:
        # Only batches: these are copied out of the shared memory, while a user's data set may write into its tensors.
        if isinstance(thing, TensorBatches):
            return _batches, (tree_map(_as_array, thing.tensors), thing.batch_size, thing.shape)
        return super().reducer_override(thing)


def _as_array(tensor: torch.Tensor) -> Any:
    return tensor if tensor.dtype == torch.bfloat16 else tensor.detach().contiguous().numpy()


def _batches(tensors: Any, batch_size: int, shape: Any) -> TensorBatches:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only memory, which is never written to here
        return TensorBatches(tree_map(_as_tensor, tensors), batch_size, shape)


def _as_tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def work(
    payload: tuple[bytes, Sequence[Any]], bundle: CodeBundle, job: Job[Any], versions: dict[str, str]
) -> Generator[Event | JobResult | UnpickleFailed, None, None]:
    """Run one job in a separate thread, and yield its events while it runs, then its result."""
    if versions != VERSIONS:
        wrong, wanted = next((name, value) for name, value in versions.items() if VERSIONS[name] != value)
        raise InputError(
            f"a node of the Ray cluster has {wrong} {VERSIONS[wrong]}, this machine {wanted}",
            place=f"node {platform.node()}",
            hint="install the same version on all nodes, as results depend on it",
        )
    messages: queue.SimpleQueue[Event | JobResult | UnpickleFailed] = queue.SimpleQueue()

    def run() -> None:
        try:
            try:
                task = pickle.loads(payload[0], buffers=payload[1])
            except Exception as error:
                messages.put(UnpickleFailed(headline(error)))
                return
            messages.put(JobResult(attempt(task, job, messages.put)))
        except BaseException as error:  # SystemExit, for one, would end only this thread
            messages.put(JobResult(job.failed(headline(error), 0.0)))

    with bundle.unpacked():
        threading.Thread(target=run, daemon=True).start()
        while True:
            message = messages.get()
            yield message
            if isinstance(message, JobResult | UnpickleFailed):
                return
