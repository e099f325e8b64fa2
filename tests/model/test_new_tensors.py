"""Tensors made inside a block are told from older ones, whatever the garbage collector does meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from dst_analyze.model.graph.new_tensors import NewTensors


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Automatic collection is off, as some training programs have it."""
    gc.disable()
    yield
    gc.enable()


def test_new_tensors_stay_new_however_often_is_collected() -> None:
    older = [torch.zeros(1) for _ in range(100)]
    with NewTensors() as new:
        made = []
        for at in range(30):
            made += [torch.zeros(1), torch.FloatTensor([1.0]), torch.nn.Parameter(torch.zeros(1))]
            gc.collect(at % 3)
        assert all(tensor in new for tensor in made)
        assert not any(tensor in new for tensor in older)


def test_automatic_collections_are_noticed() -> None:
    threshold = gc.get_threshold()
    with NewTensors() as new:
        gc.set_threshold(10)
        try:
            made = [torch.zeros(1) for _ in range(200)]
        finally:
            gc.set_threshold(*threshold)
        assert all(tensor in new for tensor in made)


def test_without_automatic_collection_there_is_little_to_look_through(uncollected: None) -> None:
    older = torch.zeros(1)
    with NewTensors() as new:
        made = torch.zeros(1)
        others = [[at] for at in range(50_000)]
        assert made in new
        assert len(gc.get_objects(generation=0)) < len(others)
        assert made in new
        assert older not in new


def test_the_collector_is_left_as_it_was() -> None:
    before = list(gc.callbacks)
    with NewTensors():
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before
