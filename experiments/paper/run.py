"""The paper's experiments, each a sweep of this tool in a run folder of its own: stopped at any time, it goes on there.

    python experiments/paper/run.py --data-root ../shared/data --out paper lenet-300-100 vgg ...
    python experiments/paper/run.py --list

From the project's root, as a run names its model's file as it is named here. Without names all of them, which takes
many hours on two cores. `evidence.py` makes the tables of docs/experiments from what is there; each run's report.html
has its figures.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dst_analyze.analysis import analyze

NETS, LENETS = "experiments/nets.py", "experiments/paper/lenets.py"


@dataclass(frozen=True)
class Experiment:
    """One sweep; ``reduced`` is what is less than in the paper."""

    about: str
    model: str
    options: dict[str, Any]
    reduced: str = ""
    paper: tuple[float, float] | None = None  # remaining and accuracy, in %
    baselines: bool = False


_PAPER = {"threshold_clock": 1, "threshold_scale": "one", "warm_up": 0, "alpha_scale": 1, "on_collapse": "reset"}
_MNIST: dict[str, Any] = {**_PAPER, "data": "mnist", "epochs": 20, "schedule": "constant"}
_LSTM = {**_MNIST, "batch_size": 100, "exclude": ["out"]}  # its classifier is neither masked nor counted in the paper
_CIFAR: dict[str, Any] = {**_PAPER, "data": "npz:{root}/cifar10-20k.npz", "schedule": "step"}
_SMALL = "20,000 of 50,000 images, no augmentation, learning rate 0.05"


def _table_1(model: str, options: dict[str, Any], remaining: float, accuracy: float, *start: float) -> Experiment:
    searched = {**options, "target_remaining": [remaining / 100], "seeds": 3, "alphas": list(start) or "auto"}
    return Experiment("Table 1", model, searched, paper=(remaining, accuracy))


EXPERIMENTS = {
    "lenet-300-100": _table_1(f"{LENETS}:lenet_300_100", _MNIST, 2.48, 97.69),
    "lenet-5-caffe": _table_1(f"{LENETS}:lenet_5", _MNIST, 1.64, 99.11, 5e-4),
    "lstm-a": _table_1("example:lstm-a", _LSTM, 1.93, 98.70, 1e-3),
    "lstm-b": _table_1("example:lstm-b", _LSTM, 0.98, 98.89, 1e-3),
    **{
        f"thresholds-{kind}": Experiment(
            "Appendix A.2",
            "example:lenet-300-100",
            {**_MNIST, "alphas": [1e-4, 5e-4], "threshold": kind},
        )
        for kind in ("vector", "scalar", "matrix")
    },
    **{
        f"rate-{lr:g}": Experiment(
            "Section 5.2",
            f"{NETS}:lenet_300_100",
            {**_MNIST, "schedule": "step", "optimizer": "sgd", "lr": lr, "alphas": [1e-4, 5e-4]},
            reduced="LeNet-300-100 on MNIST in place of VGG-16 on CIFAR-10",
        )
        for lr in (0.1, 0.01)
    },
    "vgg": Experiment(
        "Figure 7",
        f"{NETS}:vgg",
        {**_CIFAR, "steps": 9400, "lr": 0.05, "alphas": [1e-6, 1e-5, 1e-4]},
        reduced=f"a quarter of the width, 30 of 160 epochs, {_SMALL}",
        baselines=True,
    ),
    "wide-resnet": Experiment(
        "Section 5.3, appendix",
        f"{NETS}:wide_resnet",
        {**_CIFAR, "steps": 3100, "lr": 0.05, "alphas": [3e-6, 3e-5, 3e-4]},
        reduced=f"WideResNet-16-2 on images of 16x16, 10 of 160 epochs, {_SMALL}",
        baselines=True,
    ),
}


def run(name: str, data_root: Path, out: Path, jobs: int) -> None:
    experiment = EXPERIMENTS[name]
    options = dict(experiment.options)
    data = options.pop("data").format(root=data_root)
    found = analyze(
        experiment.model, data, data_root=data_root, out=out / name, resume=True, jobs=jobs, device="cpu", **options
    )
    if experiment.baselines:
        found.baselines()
    print(name, found.report(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *EXPERIMENTS], default=[])
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("paper"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    for name in options.names or EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        if options.list:
            print(f"{name:<20}{experiment.about}{f'; reduced: {experiment.reduced}' if experiment.reduced else ''}")
        else:
            run(name, options.data_root, options.out, options.jobs)


if __name__ == "__main__":
    main()
