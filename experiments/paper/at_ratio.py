"""Table 1 read as it should be: accuracy on all test images at the moment a net has no more weights than the paper's.

    python experiments/paper/at_ratio.py --data-root ../shared/data --out table-1.jsonl lenet-5-caffe lstm-a
    python experiments/paper/at_ratio.py --out table-1.jsonl --table

A layer that keeps 1 % has its thresholds reset, so that the remaining ratio of LeNet-5-Caffe is a sawtooth: what it is
at the last step is luck, and at no alpha tried does its median over the last quarter come near the paper's ratio.
Here the masks are read several times an epoch, and the net is scored wherever it has no more than the paper's share of
weights, and at the end of every epoch. The table has the mean over such readings in the last quarter of training: not
the best one, which the test images would have chosen; of a rate that falls to zero it has the end. One line of the
results per training; what stands there is not repeated.

For the LSTMs the paper's share is what the authors' published code prints, and for the output gate that code adds up
the masked weights, signs and all, where it adds up the masks of the other gates. So it leaves out most of one gate, a
sixth of what remained of LSTM-a. Here both are read, `remaining` with every gate and `counted` as that code has it, and
the paper's share is compared with the latter. And that code starts a batch of images with the state that the last one
left (lstms.py): `lstm-a-carried` and `lstm-b-carried` do, `lstm-a` and `lstm-b` read every image from zeros.

The paper's rate is constant on MNIST, and what a net scores differs from one reading to the next by more than is
compared here. With `--schedule late` it falls to zero over the last fifth; with `--schedule cosine` all along, at an
alpha about twice as high, as thresholds travel with it. With `--schedule early` they travel in the first third, before
the output layer of LeNet-300-100 gives way, and the weights go on training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from evidence import spread, table
from run import EXPERIMENTS, Experiment
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dst_analyze.masking.masked import MaskedModel
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.recipe import SCHEDULES
from dst_analyze.sweep.training.train import evaluate, train
from dst_analyze.sweep.training.trial import seeded

LSTMS = "experiments/paper/lstms.py"


@dataclass(frozen=True)
class Reading:
    """``alpha``: strong enough for the net to come down to the paper's ratio; ``amp``: in bfloat16, for time.

    ``carried``: the model of lstms.py that is trained instead, with a state that goes from batch to batch.
    """

    alpha: float
    per_epoch: int
    amp: bool = False
    carried: str = ""


NETS = {
    "lenet-300-100": Reading(7.5e-4, 8),
    "lenet-5-caffe": Reading(8e-4, 8),
    "lstm-a": Reading(5.5e-4, 2),
    "lstm-b": Reading(4.3e-4, 2, amp=True),
    "lstm-a-carried": Reading(5.5e-4, 2, carried="lstm_a"),
    "lstm-b-carried": Reading(4.3e-4, 2, amp=True, carried="lstm_b"),
}


def falling(done: float) -> float:
    """The tool's cosine, from one to zero, and level before and after."""
    return SCHEDULES["cosine"][0](min(max(done, 0.0), 1.0))


def late(done: float) -> float:
    """The paper's constant rate, but for the last fifth of the way, in which it falls to zero."""
    return falling((done - 0.8) / 0.2)


def early(done: float) -> float:
    """Rises to twice the paper's rate in a twentieth of the way, is down to 3 % of it at three tenths, ends at zero."""
    return min(done / 0.025, max(2 * falling((done - 0.05) / 0.25), 0.03 * falling(done)))


SHAPES = {"late": late, "early": early}
"""Schedules beside those of the tool."""


def experiment_of(name: str) -> Experiment:
    return EXPERIMENTS[name.removesuffix("-carried")]


class State:
    """What a batch of images leaves to the next one; nothing where a model has no such buffer."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = [buffer for name, buffer in model.named_buffers() if name.split(".")[-1] == "state"]

    def forget(self) -> None:
        for buffer in self.buffers:
            buffer.zero_()

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        """Keeps the state that comes with the scores."""
        scores, state = outputs
        [buffer] = self.buffers
        buffer.copy_(state.detach())
        return F.cross_entropy(scores, batch[1])

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Other images are read, from a state of zeros, then it is as before."""
        kept = [buffer.clone() for buffer in self.buffers]
        self.forget()
        yield
        for buffer, before in zip(self.buffers, kept, strict=True):
            buffer.copy_(before)


def counted(model: MaskedModel) -> float:
    """What remains as the authors' code counts it."""
    kept, total = 0.0, 0
    for layer, (name, mask) in zip(model.layers, model.masks().items(), strict=True):
        total += mask.numel()
        if layer.recurrent:
            *gates, output = mask.chunk(4)
            kept += sum(gate.sum().item() for gate in gates)
            kept += (output * model.layer_weights()[name].detach().chunk(4)[-1]).sum().item()
        else:
            kept += mask.sum().item()
    return kept / total


def course(name: str, alpha: float | None, seed: int, schedule: str, data_root: Path) -> list[dict[str, Any]]:
    """One training of the paper's length, what was read of it; without an alpha of the dense net."""
    experiment, reading = experiment_of(name), NETS[name]
    spec = f"{LSTMS}:{reading.carried}" if reading.carried else experiment.model
    options = {key: value for key, value in experiment.options.items() if key not in ("target_remaining", "seeds")}
    options |= {"alphas": [alpha or reading.alpha], "amp": reading.amp, "device": "cpu", "out": "not-written"}
    options["schedule"] = "constant" if schedule in SHAPES else schedule
    task = plan_sweep(spec, data_root=data_root, **options).task
    assert experiment.paper is not None
    wanted, epoch = experiment.paper[0] / 100, task.steps // task.config.epochs
    sizes = {layer.name: layer.params for layer in task.traced.layers}
    rows: list[dict[str, Any]] = []
    with seeded(seed):
        built = task.source.build()
        model = task.mask(built) if alpha else built
        state = State(model)
        objective = replace(task.objective(built), custom=state.loss if reading.carried else None)
        optimizer, rate = task.recipe.start(model, alpha=alpha or 0.0)
        if schedule in SHAPES:
            rate = LambdaLR(optimizer, lambda step: SHAPES[schedule](step / task.steps))

        def read(step: int, loss: float) -> bool:
            if step % epoch == 0:
                state.forget()
            if step % (epoch // reading.per_epoch) and step != task.steps:
                return False
            layers = model.remaining() if alpha else {}
            share = sum(layers[n] * sizes[n] for n in layers) / sum(sizes[n] for n in layers) if alpha else 1.0
            as_counted = counted(model) if alpha else 1.0
            score = None
            if as_counted <= wanted or step % epoch < epoch // reading.per_epoch or step == task.steps:
                with state.apart():
                    score = evaluate(model, task.test_data.once(), objective, task.device)[1]
                print(f"{name} {alpha} seed {seed} step {step}: {share:.4f} ({as_counted:.4f}) {score:.4f}", flush=True)
            resets = sum(model.resets.values()) if alpha else 0
            row = {"step": step, "remaining": share, "counted": as_counted, "score": score}
            rows.append(row | {"resets": resets, "layers": layers})
            return False

        train(
            model, task.train_data.stream(seed), objective, optimizer, rate, task.device,
            steps=task.steps, on_step=read,
        )  # fmt: skip
    return rows


def results(out: Path) -> list[dict[str, Any]]:
    lines = out.read_text().splitlines() if out.exists() else []
    return [{"schedule": "constant", **json.loads(line)} for line in lines]


def late_and_low(course: list[dict[str, Any]], share: float, schedule: str) -> dict[str, Any] | None:
    """The mean over the readings in the last quarter at which no more than the share of weights remained.

    Of a rate that falls to zero it is the last reading. In lines from before both were read a share is of all gates."""
    last = course[-1]["step"]
    since = 3 / 4 * last if schedule == "constant" else last - 1
    late = [{"counted": r["remaining"], **r} for r in course if r["step"] > since and r["score"] is not None]
    met = pd.DataFrame([r for r in late if r["counted"] <= share])
    if met.empty:
        return None
    means = met[["score", "remaining", "counted"]].mean().to_dict()
    return {**means, "layers": pd.DataFrame(list(met["layers"])).mean().to_dict()}


def show(out: Path) -> None:
    rows = []
    masked = pd.DataFrame(results(out)).dropna(subset="alpha")
    for (name, schedule, alpha), trainings in masked.groupby(["net", "schedule", "alpha"]):
        paper = experiment_of(name).paper
        assert paper is not None
        read = [late_and_low(course, paper[0] / 100, schedule) for course in trainings["course"]]
        there = [met for met in read if met is not None]
        key = {"net": name, "schedule": schedule, "alpha": None}
        dense = [r["course"][-1]["score"] for r in results(out) if key.items() <= r.items()]
        ours = "never"
        if there:
            score, share, true = (spread([r[what] for r in there]) for what in ("score", "counted", "remaining"))
            ours = f"{score} at {share}" + (f" (all gates: {true})" if true != share else "")
        layers = pd.DataFrame([r["layers"] for r in there]).mean()
        rows.append([
            name, f"{paper[1]:.2f} at {paper[0]:.2f}", ours, spread(dense) if dense else "", schedule, f"{alpha:g}",
            f"{len(there)} of {len(trainings)}", " ".join(f"{100 * ratio:.3g}" for ratio in layers),
            " ".join(str(course[-1]["resets"]) for course in trainings["course"]),
        ])  # fmt: skip
    heads = ["net", "paper: accuracy at % remaining", "ours", "ours, dense", "rate", "alpha", "seeds", "layers, %"]
    print(table([*heads, "resets"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *NETS], default=[])
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("table-1.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--alpha", type=float, help="other than the net's own")
    parser.add_argument("--schedule", choices=[*SCHEDULES, *SHAPES], default="constant", help="of the learning rate")
    parser.add_argument("--dense", action="store_true", help="the dense net instead")
    parser.add_argument("--table", action="store_true", help="only show what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [] if options.table else options.names or NETS:
        alpha = None if options.dense else options.alpha or NETS[name].alpha
        for seed in options.seeds:
            key = {"net": name, "alpha": alpha, "seed": seed, "schedule": options.schedule}
            if any(key.items() <= row.items() for row in results(options.out)):
                continue
            row = {**key, "course": course(name, alpha, seed, options.schedule, options.data_root)}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    show(options.out)


if __name__ == "__main__":
    main()
