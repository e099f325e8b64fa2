"""What a slim model does in each mode and without optional inputs is what the user's model does."""

from __future__ import annotations

import copy
import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from dst_analyze import couple_channels
from dst_analyze.masking.masked import mask_model
from dst_analyze.model.graph.symbolic import plain_output
from dst_analyze.model.isolation import in_mode
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.slimming.source.write import write_source
from dst_analyze.slimming.surgery.build import slim

Kwargs = dict[str, torch.Tensor]


def slimmed(traced: TracedModel, share: float) -> Any:
    coupling, rng = couple_channels(traced), random.Random(0)
    removal = {g.name: rng.sample(range(g.width), int(g.width * share)) for g in coupling.removable}
    return slim(traced, removal, coupling=coupling)


def from_source(small: Any, folder: Path) -> Any:
    path = write_source(small, folder / "slim_model.py")
    spec = importlib.util.spec_from_file_location("slim_model", path)
    assert spec is not None
    assert spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    return file.build_model()


def outputs(model: nn.Module, given: Kwargs, *, training: bool) -> list[Any]:
    """Return what a copy gives with one seed, and the random numbers that it left."""
    torch.manual_seed(1)
    output = in_mode(copy.deepcopy(model), training)(**{name: t.clone() for name, t in given.items()})
    return [*tree_leaves(plain_output(output, lambda _: None)), torch.rand(())]


def assert_same(one: nn.Module, other: nn.Module, given: Kwargs) -> None:
    for training in (False, True):
        expected, actual = (outputs(model, given, training=training) for model in (one, other))
        assert len(expected) == len(actual)
        for a, b in zip(expected, actual, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# --- modes ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Two linear layers with something between them, which a subclass defines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("var", torch.ones(16))

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.between(torch.relu(self.first(x))))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class FunctionalDropout(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.4, training=self.training)


class AttentionDropout(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None].expand(-1, 4, -1)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3 if self.training else 0.0).sum(1)


class StochasticDepthFunction(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop_path(torch.sigmoid(x))

    def drop_path(self, x: torch.Tensor, p: float = 0.3) -> torch.Tensor:
        if not self.training:
            return x
        kept = x.new_empty((x.shape[0], 1)).bernoulli_(1 - p)
        return x * kept / (1 - p)


class Noise(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return x


class Temperature(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * (0.5 if self.training else 2.0)


class EvalOnly(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else torch.clamp(x * 1.5, max=2.0)


class OneWayEach(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * torch.rand_like(x) if self.training else torch.sigmoid(x).square()


class FunctionalBatchNorm(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, self.mean, self.var, training=self.training)


class OutputsByMode(Net):
    def forward(self, x: torch.Tensor) -> Any:
        logits = super().forward(x)
        return logits if self.training else logits.softmax(-1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x


class TrainReturnsNothing(Temperature):
    """As models do that keep some batch norms in eval mode."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


class MovesAnOperation(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.training else torch.cos(x)
        x = self.last(torch.relu(self.first(x)))
        return torch.cos(x) if self.training else x


BY_MODE = (
    FunctionalDropout, AttentionDropout, StochasticDepthFunction, Noise, Temperature, EvalOnly, OneWayEach,
    FunctionalBatchNorm, OutputsByMode, MovesAnOperation, TrainReturnsNothing,
)  # fmt: skip


@pytest.mark.parametrize("kind", BY_MODE, ids=lambda kind: kind.__name__)
def test_a_slim_model_follows_its_mode(kind: type[Net], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(4, 6)
    traced = trace_model(model, x)
    whole = slimmed(traced, 0.0)
    assert not whole.meta["notes"]
    assert_same(model, whole, {"x": x})
    assert_same(model, from_source(whole, tmp_path), {"x": x})
    small = slimmed(traced, 0.5)
    assert small.get_submodule("first").out_features == 8
    again = from_source(small, tmp_path)
    assert list(again.state_dict()) == [key for key in model.state_dict() if key in again.state_dict()]
    for size in (4, 7):
        assert_same(small, again, {"x": torch.randn(size, 6)})
    assert not torch.equal(outputs(again, {"x": x}, training=True)[0], outputs(again, {"x": x}, training=False)[0])


def test_a_way_that_cannot_be_merged_is_noted() -> None:
    class Auxiliary(Net):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> Any:
            x = torch.relu(self.first(x))
            return (self.last(x), self.other(x)) if self.training else self.last(x)

    small = slimmed(trace_model(Auxiliary(), torch.randn(4, 6)), 0.5)
    (note,) = small.meta["notes"]
    assert note.startswith("in training mode")
    assert "other, a Linear with parameters" in note
    assert small.train()(torch.randn(4, 6)).shape == (4, 3)


class LayerDrop(Net):
    """Skips a layer by chance in training mode; at zero, it draws a number for nothing, as transformers' models do."""

    layerdrop = 0.0

    def between(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            drawn = torch.rand([])
            if drawn < self.layerdrop:
                return x
        return F.dropout(torch.tanh(x), 0.3, self.training)


class NoLayerDrop(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.tanh(x), 0.3, self.training)


def test_random_numbers_that_decide_nothing_are_not_drawn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, plain, x = LayerDrop(), NoLayerDrop(), torch.randn(4, 6)
    plain.load_state_dict(model.state_dict())
    traced = trace_model(model, x)
    assert mask_model(traced).form.train == "graph"
    whole = slimmed(traced, 0.0)
    assert not whole.meta["notes"]
    assert_same(plain, whole, {"x": x})
    assert_same(plain, from_source(whole, tmp_path), {"x": x})


def test_layers_that_are_skipped_by_chance_are_noted() -> None:
    model = LayerDrop()
    model.layerdrop = 0.4
    traced = trace_model(model, torch.randn(4, 6))
    assert mask_model(traced).form.train != "graph"
    (note,) = slimmed(traced, 0.5).meta["notes"]
    assert note.startswith("in training mode")
    assert "chance decides" in note


# --- optional inputs and types of outputs ---------------------------------------------------------------------------


class Classifier(nn.Module):
    """A classifier of tokens that computes its loss if it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5]))

    def logits(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = torch.relu(self.hidden(self.embed(ids)))
        if mask is None:
            mask = torch.ones(ids.shape[0], ids.shape[1])
        x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(F.dropout(x, 0.2, self.training))


class WithTuple(Classifier):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None, labels: torch.Tensor | None = None) -> Any:
        logits = self.logits(ids, mask)
        loss = F.cross_entropy(logits, labels, self.weight) if labels is not None else None
        return logits, loss


class WithDict(Classifier):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None, labels: torch.Tensor | None = None) -> Any:
        found = {"logits": self.logits(ids, mask)}
        if labels is not None:
            found["loss"] = F.cross_entropy(found["logits"], labels)
        return found


class Result(NamedTuple):
    loss: torch.Tensor | None
    logits: torch.Tensor


@dataclass
class Answer:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class WithNamedTuple(Classifier):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None, labels: torch.Tensor | None = None) -> Any:
        logits = self.logits(ids, mask)
        return Result(None if labels is None else F.cross_entropy(logits, labels), logits)


class WithDataclass(Classifier):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None, labels: torch.Tensor | None = None) -> Any:
        logits = self.logits(ids, mask)
        return Answer(logits, None if labels is None else F.cross_entropy(logits, labels))


def tokens(size: int = 4) -> Kwargs:
    mask = torch.ones(size, 5)
    mask[0, 3:] = 0
    return {"ids": torch.randint(0, 20, (size, 5)), "mask": mask, "labels": torch.arange(size) % 3}


def without(given: Kwargs, *names: str) -> Kwargs:
    return {name: value for name, value in given.items() if name not in names}


@pytest.mark.parametrize("kind", [WithTuple, WithDict, WithNamedTuple, WithDataclass], ids=lambda kind: kind.__name__)
def test_labels_and_masks_stay_optional(kind: Callable[[], Classifier], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, given = kind(), tokens()
    traced = trace_model(model, given)
    whole = slimmed(traced, 0.0)
    assert not whole.meta["notes"]
    calls = [(), ("labels",), ("mask",), ("mask", "labels")]
    again = from_source(whole, tmp_path)
    for absent in calls:
        assert_same(model, whole, without(given, *absent))
        assert_same(model, again, without(given, *absent))
    assert type(whole(**given)) is type(model(**given)) is type(again(**given))
    small = from_source(slimmed(traced, 0.5), tmp_path)
    assert small.hidden.out_features == 8
    for absent in calls:
        outputs(small, without(tokens(3), *absent), training=True)
    alone = small(given["ids"])
    assert getattr(alone, "loss", None) is None
    if isinstance(alone, tuple):
        assert sum(item is None for item in alone) == 1
    if isinstance(alone, dict):
        assert list(alone) == ["logits"]


class SkipsFullMask(Classifier):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.hidden(self.embed(ids))
        if mask is not None and not bool((mask == 1).all()):
            x = x.masked_fill(mask[..., None] == 0, 0.0)
        return self.head(F.dropout(torch.relu(x), 0.2, self.training).mean(1))


def test_a_mask_that_the_example_does_not_need_is_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, ids, padded = SkipsFullMask(), torch.randint(0, 20, (4, 6)), torch.ones(4, 6, dtype=torch.long)
    padded[1, 2:] = 0
    traced = trace_model(model, {"ids": ids, "mask": torch.ones_like(ids)})
    whole = slimmed(traced, 0.0)
    assert not whole.meta["notes"]
    again = from_source(slimmed(traced, 0.5), tmp_path)
    for call in ({"ids": ids, "mask": padded}, {"ids": ids, "mask": torch.ones_like(ids)}, {"ids": ids}):
        assert_same(model, whole, call)
        assert_same(slimmed(traced, 0.5), again, call)


def test_a_slim_model_learns_with_and_without_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = tokens(6)
    small = from_source(slimmed(trace_model(WithDict(), given), 0.5), tmp_path).train()
    optimizer = torch.optim.Adam(small.parameters(), 0.05)
    losses = []
    for step in range(60):
        loss = (
            small(**given)["loss"]
            if step % 2
            else F.cross_entropy(small(**without(given, "labels"))["logits"], given["labels"])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-6:]) < 0.5 * sum(losses[:6])


class Detector(nn.Module):
    """A detector that matches its boxes with those of the targets, by numbers that a graph would build in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, targets: list[dict[str, torch.Tensor]] | None = None) -> Any:
        boxes = self.last(torch.relu(self.first(x)))
        if targets is None:
            return {"boxes": boxes}
        loss = torch.zeros(())
        for box, target in zip(boxes, targets, strict=True):
            nearest = int((target["boxes"] - box).abs().sum(1).argmin())
            loss = loss + (target["boxes"][nearest] - box).abs().sum()
        return {"loss": loss, "boxes": boxes}


def test_a_loss_that_depends_on_the_values_of_targets_is_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Detector(), torch.randn(2, 6)
    targets = [{"boxes": torch.randn(3, 4)} for _ in range(2)]
    small = slimmed(trace_model(model, {"x": x, "targets": targets}), 0.0)
    (note,) = small.meta["notes"]
    assert note == "what depends on the values of targets is left out, such as a loss"
    again = from_source(small, tmp_path)
    assert list(again(x)) == ["boxes"]
    assert_same(model, again, {"x": torch.randn(5, 6)})


# --- example inputs -------------------------------------------------------------------------------------------------


class ManyInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.kinds = nn.Embedding(30, 16), nn.Embedding(4, 16)
        self.hidden, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(
        self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        x = self.embed(tokens.view(tokens.shape[0], -1)) + F.embedding(kinds, self.kinds.weight)
        x = torch.relu(self.hidden(x)) * mask[..., None] * scale
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def test_example_inputs_make_sense(tmp_path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (4, 9))
    labels[:, -1] = -100
    inputs = (torch.randint(0, 7, (4, 9)), torch.zeros(4, 9, dtype=torch.long), torch.ones(4, 9), torch.ones(1), labels)
    inputs[2][1, 5:] = 0
    small = slimmed(trace_model(ManyInputs(), inputs), 0.5)
    path = write_source(small, tmp_path / "slim_model.py")
    text = path.read_text()
    wanted = (
        "torch.randint(0, 30, (4, 9))",
        "torch.randint(0, 4, (4, 9))",
        "torch.ones((4, 9))",
        "torch.randn((1,))",
        "torch.randint(0, 3, (4, 9))",
    )
    places = [text.index(line, text.index("def example_inputs")) for line in wanted]
    assert places == sorted(places)
