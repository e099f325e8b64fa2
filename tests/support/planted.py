"""Networks whose redundancy is known because it was planted, each beside a control that differs in nothing else.

All read the embedded digits, 8x8 pixels. ``planted=False`` gives the control: the same layers, nothing planted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

TIMES = 8


class Wide(nn.Module):
    """Two branches read the image; one has 8 units for each of its twin's and passes on the largest of each 8.

    Both have the same fan-in and feed the same number of inputs of the next layer: only the width differs.
    """

    def __init__(self, planted: bool = True) -> None:
        super().__init__()
        self.times = TIMES if planted else 1
        self.twin, self.wide = nn.Linear(64, 32), nn.Linear(64, 32 * self.times)
        self.mix, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        wide = self.wide(x).relu().view(len(x), 32, self.times).amax(2)
        return self.head(self.mix(torch.cat([self.twin(x).relu(), wide], 1)).relu())


class Widened(nn.Module):
    """A chain of equal layers, the second with so many times the outputs it needs; the third reads them all."""

    def __init__(self, planted: bool = True, times: int = TIMES) -> None:
        super().__init__()
        width = 32 * (times if planted else 1)
        self.one, self.wide, self.three = nn.Linear(64, 32), nn.Linear(32, width), nn.Linear(width, 32)
        self.four, self.head = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in (self.one, self.wide, self.three, self.four):
            x = layer(x).relu()
        return self.head(x)


class WideBranch(nn.Module):
    """Two branches of two layers; one is 8 times as wide inside. What it has too much of may go from either layer."""

    def __init__(self, planted: bool = True) -> None:
        super().__init__()
        width = 32 * (TIMES if planted else 1)
        self.twin_in, self.twin_out = nn.Linear(64, 32), nn.Linear(32, 32)
        self.wide, self.wide_out = nn.Linear(64, width), nn.Linear(width, 32)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        twin = self.twin_out(self.twin_in(x).relu()).relu()
        return self.head(torch.cat([twin, self.wide_out(self.wide(x).relu()).relu()], 1))


class Constant(nn.Module):
    """Two branches of one size; one reads the image, the other the same number in every sample."""

    def __init__(self, planted: bool = True) -> None:
        super().__init__()
        self.planted = planted
        self.seeing, self.blind = nn.Linear(64, 32), nn.Linear(64, 32)
        self.mix, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        other = torch.full_like(x, 0.5) if self.planted else x
        return self.head(self.mix(torch.cat([self.seeing(x).relu(), self.blind(other).relu()], 1)).relu())


class Duplicated(nn.Module):
    """A layer that is there twice, weights and all, the two added up: the one could do the other's work."""

    def __init__(self, planted: bool = True) -> None:
        super().__init__()
        self.stem, self.branch = nn.Linear(64, 48), nn.Linear(48, 48)
        self.copy = nn.Linear(48, 48) if planted else None
        if self.copy is not None:
            self.copy.load_state_dict(self.branch.state_dict())
        self.mix, self.head = nn.Linear(48, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(1)).relu()
        branch = self.branch(x).relu()
        if self.copy is not None:
            branch = branch + self.copy(x).relu()
        return self.head(self.mix(branch).relu())


class Neck(nn.Module):
    """Everything passes through 4 numbers: the layer that makes them is needed. In the control it makes 32."""

    def __init__(self, planted: bool = True) -> None:
        super().__init__()
        width = 4 if planted else 32
        self.one, self.neck, self.two = nn.Linear(64, 32), nn.Linear(32, width), nn.Linear(width, 32)
        self.three, self.head = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in (self.one, self.neck, self.two, self.three):
            x = layer(x).relu()
        return self.head(x)


class Big(nn.Module):
    """A chain whose second layer holds over half of all weights and passes on the largest of each 16 outputs."""

    def __init__(self, planted: bool = True) -> None:
        super().__init__()
        self.times = 16 if planted else 1
        self.stem, self.big = nn.Linear(64, 32), nn.Linear(32, 32 * self.times)
        self.mix, self.head = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(1)).relu()
        x = self.big(x).relu().view(len(x), 32, self.times).amax(2)
        return self.head(self.mix(x).relu())


@dataclass(frozen=True)
class Planting:
    """``layers`` are expected at one end of the ranking: the redundant one, or with ``needed`` the other.

    ``exclude``: layers that are not analysed, because by construction they belong at that end as well.
    """

    net: Callable[..., nn.Module]
    layers: frozenset[str]
    needed: bool = False
    exclude: tuple[str, ...] = ()

    def build(self, planted: bool) -> Callable[[], nn.Module]:
        return partial(self.net, planted)


PLANTINGS = {
    "wide": Planting(Wide, frozenset({"wide"})),
    "widened": Planting(Widened, frozenset({"wide"})),
    "constant": Planting(Constant, frozenset({"blind"})),
    "duplicated": Planting(Duplicated, frozenset({"branch", "copy"})),
    "neck": Planting(Neck, frozenset({"neck"}), needed=True, exclude=("head",)),  # all passes the last layer too
    "wide branch": Planting(WideBranch, frozenset({"wide"})),
    "big": Planting(Big, frozenset({"big"})),
}
