"""Is planted width taken back? A chain with one layer four times as wide, slimmed to the size it would have without.

    OMP_NUM_THREADS=1 python experiments/planted_width.py --runs DIR [--only linear-0 conv-3 ...] [--seeds 2]

For each place in a chain of four linear layers of 32 (ReLU between them) and of four convolutions of 16 (batch norm,
ReLU, one pooling) on the embedded digits: a sweep with default options, then the widths of the plan whose target are
the parameters of the chain without planted width, by each rule. Runs are kept in DIR and not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from dst_analyze import analyze
from dst_analyze.slimming.planning.budget import RULES
from dst_analyze.sweep.data.digits import load_digits

TIMES, LAYERS = 4, 4


def linears(widths: list[int]) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip([64, *widths[:-1]], widths, strict=True):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def convs(widths: list[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(zip([1, *widths[:-1]], widths, strict=True)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if place == 1 else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


CHAINS = {"linear": (linears, 32), "conv": (convs, 16)}


def params(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def measure(name: str, runs: Path, seeds: int) -> list[dict[str, object]]:
    kind, place = name.split("-")
    build, width = CHAINS[kind]
    widths = [width] * LAYERS
    share = params(build(widths))
    widths[int(place)] *= TIMES
    images, labels = load_digits()
    data = ((images[:1437], labels[:1437]), (images[1437:], labels[1437:]))
    found = analyze(lambda: build(widths), data, seeds=seeds, out=runs / name, resume=True, jobs=1, progress=False)
    target = share / found.traced.params
    rows = []
    for rule in RULES:
        plan = found.suggest_widths(target_params=target, rule=rule, round_to=1, write=False)
        new = [group.new_width for group in plan.groups]
        rows.append(
            {"net": name, "rule": rule, "planted": new[int(place)], "over": new[int(place)] / width, "all": new}
        )
    return rows


def main() -> None:
    names = [f"{kind}-{place}" for kind in CHAINS for place in range(LAYERS)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        print(pd.DataFrame(measure(name, options.runs, options.seeds)).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
