"""What the plain command says: `dst-analyze MODEL --alphas 1e-7,1e-6,1e-5` and nothing else, on many nets.

    python experiments/plain_command.py [--shared ../shared] [--net NAME ...] [--read | --table]

Each net is run by the real command, in a process of its own, with its data but no other option; what takes too long on
two cores is shortened, and says so. Runs are kept under ``--runs`` and not repeated; ``--read`` ranks and slims those
that are there by today's code and trains nothing; ``--table`` prints the results (docs/experiments/plain-command.md).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dst_analyze import SlimPlan, rank_layers, read_run

RESULTS = Path(__file__).parent / "results/plain_command.jsonl"
ALPHAS = "1e-7,1e-6,1e-5"
CIFAR = ("--data", "npz:{shared}/data/cifar10-20k.npz")
MNIST = ("--data", "mnist", "--data-root", "{shared}/data")
SMALL, TINY = ("--steps", "200", "--batch-size", "32"), ("--steps", "100", "--batch-size", "8")


@dataclass(frozen=True)
class Net:
    """``options`` are its data; ``shortened``: what was changed for time, if anything."""

    title: str
    model: str
    options: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()


NETS = {
    "demo": Net("demo, digits", "example:demo"),
    "lenet-300-100": Net("LeNet-300-100, MNIST", "example:lenet-300-100", MNIST),
    "lenet-5": Net("LeNet-5-Caffe, MNIST", "example:lenet-5-caffe", MNIST),
    "mlp_sgd": Net("MLP of 5 layers, MNIST 14x14 *", "experiments/plain/mlp_sgd.py"),
    "vgg": Net("VGG-16, quarter width, CIFAR-10", "experiments/nets.py:vgg", CIFAR, ("--steps", "600")),
    "small_resnet": Net("ResNet-14, CIFAR-10", "experiments/nets.py:small_resnet", CIFAR),
    "wide_resnet": Net("WideResNet-16-2, CIFAR-10", "experiments/nets.py:wide_resnet", CIFAR, ("--steps", "600")),
    "residual_sgd": Net("residual CNN, CIFAR-10 16x16 *", "experiments/plain/residual_sgd.py"),
    "resnet-20": Net("ResNet-20, digits", "example:resnet-20", shortened=("--steps", "300")),
    "resnet-56": Net("ResNet-56, digits", "example:resnet-56", shortened=SMALL),
    "mobilenet-v2": Net("MobileNetV2-like, digits", "example:mobilenet-v2", shortened=SMALL),
    "vgg-16": Net("VGG-16, digits", "example:vgg-16", shortened=SMALL),
    "resnet-50": Net("ResNet-50, digits at 224x224", "example:resnet-50", shortened=TINY),
    "wide-resnet-16-8": Net("WideResNet-16-8, digits", "example:wide-resnet-16-8", shortened=TINY),
    "wide-resnet-28-8": Net("WideResNet-28-8, digits", "example:wide-resnet-28-8", shortened=TINY),
    "cnn_adamw": Net("CNN of 9 layers, CIFAR-10 16x16, AdamW *", "experiments/plain/cnn_adamw.py"),
    "vit": Net("small ViT, MNIST, Adam", "experiments/small_vit.py:vit", MNIST),
    "small-vit": Net("small ViT, digits, AdamW", "example:small-vit", shortened=("--steps", "300")),
    "mlp-mixer": Net("MLP-Mixer, digits, AdamW", "example:mlp-mixer", shortened=("--steps", "300")),
    "rows_transformer": Net("transformer on rows, MNIST 14x14, AdamW *", "experiments/plain/rows_transformer.py"),
    "char-gru": Net("character GRU, Adam", "example:char-gru"),
    "gru_adam": Net("GRU on rows, MNIST 14x14, Adam *", "experiments/plain/gru_adam.py"),
    "lstm-a": Net("LSTM-a, MNIST, Adam", "example:lstm-a", MNIST, ("--steps", "600")),
    "lstm-b": Net("LSTM-b, MNIST, Adam", "example:lstm-b", MNIST, ("--steps", "300")),
}


def run(name: str, net: Net, shared: str, runs: Path, read: bool) -> dict[str, Any]:
    """What the command leaves behind, read from its run folder."""
    options = [option.format(shared=shared) for option in (*net.options, *net.shortened)]
    out, started = runs / name, time.perf_counter()
    command = [str(Path(sys.executable).with_name("dst-analyze"))]
    if read:
        roots = options[options.index("--data-root") :][:2] if "--data-root" in options else []
        command += ["slim", str(out), *roots]
    else:
        command += [net.model, "--alphas", ALPHAS, *options, "--out", str(out), "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (runs / f"{name}.txt").write_text(done.stdout + done.stderr)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{name}: {done.stderr}")
    record = read_run(out)
    ranking = rank_layers(record)
    plan = SlimPlan.load(out / "plan.json") if (out / "plan.json").exists() else None
    trials = [trial for trial in record.trials if trial.alpha is not None]
    return {
        "net": name, "title": net.title, "shortened": " ".join(net.shortened), "layers": len(ranking.table),
        "factor": record.config.alpha_factor, "remaining": [trial.remaining for trial in trials],
        "resets": sum(sum(trial.resets.values()) for trial in trials), "reference": record.dense.score,
        "scores": [trial.score for trial in trials], "score": record.manifest.data.score,
        "used": int((ranking.trials["status"] == "used").sum()), "verdict": str(ranking.verdict),
        "w": None if ranking.agreement != ranking.agreement else round(ranking.agreement, 3),
        "labels": ranking.table["label"].value_counts().to_dict(),
        "params": plan and round(plan.new_params / plan.params, 3), "source": (out / "slim_model.py").exists(),
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    heads = ["net", "factor", "remain, %", "reference", "scores", "trials used", "verdict", "W", "labelled", "slim"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        scale = 100 if row["score"] == "accuracy" else 1
        resets = f" ({row['resets']} resets)" if row["resets"] else ""
        sure = sum(count for label, count in row["labels"].items() if label not in ("unclear", "not measured"))
        factor = f"{row['factor']:.3g}" if row["factor"] < 1000 else f"{row['factor']:,.0f}"
        cells = [
            row["title"] + (f" ({row['shortened']})" if row["shortened"] else ""), factor,
            ", ".join(f"{100 * r:.1f}" for r in row["remaining"]) + resets,
            f"{scale * row['reference']:.3g}", ", ".join(f"{scale * s:.3g}" for s in row["scores"]), str(row["used"]),
            row["verdict"], "" if row["w"] is None else f"{row['w']:.2f}", f"{sure} of {row['layers']}",
            f"{row['params']:.0%}" if row["params"] else "none",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--runs", type=Path, default=Path("reports/plain"))
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--read", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    there = {}
    if RESULTS.exists():
        there = {row["net"]: row for row in map(json.loads, RESULTS.read_text().splitlines())}
    options.runs.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in options.net or NETS if not options.read or (options.runs / name).exists()]
    for name in () if options.table else chosen:
        there[name] = run(name, NETS[name], options.shared, options.runs, options.read)
        print(json.dumps(there[name]), flush=True)
        RESULTS.write_text("".join(json.dumps(there[net]) + "\n" for net in NETS if net in there))
    print(table([there[net] for net in NETS if net in there]))


if __name__ == "__main__":
    main()
