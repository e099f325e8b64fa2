"""Figure 4: what remains of each layer of LeNet-300-100 at every step of the first epoch, and over all twenty.

    python experiments/paper/first_epoch.py --data-root ../shared/data --runs paper --out docs/first-epoch.png

The first epoch is trained here, with the paper's optimizer and alpha 5e-4; the whole training is read from the run
`thresholds-vector` of `run.py`, which has the same options.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from run import EXPERIMENTS

from dst_analyze import read_run
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.train import train
from dst_analyze.sweep.training.trial import seeded

RUN, ALPHA, EPOCH = "thresholds-vector", 5e-4, 938


def first_epoch(data_root: Path) -> pd.DataFrame:
    """Layers by step, in percent."""
    experiment = EXPERIMENTS[RUN]
    task = plan_sweep(experiment.model, data_root=data_root, device="cpu", **experiment.options).task
    rows: list[dict[str, float]] = []
    with seeded(0):
        masked = task.mask(task.source.build())
        optimizer, schedule = task.recipe.start(masked, alpha=ALPHA)

        def read(step: int, loss: float) -> bool:
            rows.append(masked.remaining())
            return False

        batches = task.train_data.stream(0)
        objective = task.objective(task.traced.model)
        train(masked, batches, objective, optimizer, schedule, task.device, steps=EPOCH, on_step=read)
    return 100 * pd.DataFrame(rows, index=range(1, EPOCH + 1))


def whole_training(run: Path) -> pd.DataFrame:
    frame = read_run(run).frame
    return 100 * frame[frame["alpha"] == ALPHA].pivot(index="step", columns="layer", values="remaining")


def draw(axes: Axes, table: pd.DataFrame, title: str) -> None:
    for number, (layer, style) in enumerate(zip(table, ("-", "--", ":"), strict=True), 1):
        axes.plot(table.index, table[layer], style, label=f"layer {number}")
    axes.set(title=title, xlabel="step", ylim=(0, 103))
    axes.grid(alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--runs", type=Path, default=Path("paper"))
    parser.add_argument("--out", type=Path, default=Path("first-epoch.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    epoch = first_epoch(options.data_root)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    draw(left, epoch, "the first epoch")
    left.set_ylabel("remaining %")
    if (options.runs / RUN).exists():
        draw(right, whole_training(options.runs / RUN), "20 epochs")
    left.legend()
    figure.savefig(options.out, dpi=110)
    changes = epoch.diff().abs()
    print(f"the largest change in one step, in points: {changes.max().round(2).to_dict()}")
    print(f"rises (recovery) in the first 100 steps: {(epoch.diff().iloc[:100] > 0).sum().to_dict()}")
    print(f"after 1, 100, 938 steps: {[epoch.loc[step].round(1).to_list() for step in (1, 100, EPOCH)]}")


if __name__ == "__main__":
    main()
