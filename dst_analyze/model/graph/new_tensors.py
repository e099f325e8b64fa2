"""Which tensors are new: those that were made inside a block, told by the garbage collector."""

from __future__ import annotations

import gc
from types import TracebackType

import torch

_MOST_YOUNG = 10_000  # objects to look through, if automatic collection is off


class NewTensors:
    """The tensors that were made since the block was entered.

    New objects are in the garbage collector's youngest generation until its next run, before which the tensors among
    them are noted. Listing the older ones instead would take 0.1 s in a small process: it has 400,000 objects.
    """

    def __init__(self) -> None:
        # Ids suffice: an object at the place of a new tensor that is gone is new itself.
        self._noted: set[int] = set()

    def __enter__(self) -> NewTensors:
        gc.collect(0)  # whatever is there leaves the youngest generation
        gc.callbacks.append(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._note)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        if id(tensor) in self._noted:
            return True
        young = gc.get_objects(generation=0)
        found = any(each is tensor for each in reversed(young))  # the newest are last
        if len(young) > _MOST_YOUNG:
            gc.collect(0)
        return found

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            young = gc.get_objects(generation=0)
            self._noted.update(id(each) for each in young if issubclass(type(each), torch.Tensor))
