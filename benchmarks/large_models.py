"""Time and memory of everything but training for large models, and how both grow with the number of layers.

    python benchmarks/large_models.py [--model NAME ...] [--depths 100 200 400] [--out FILE]
    python benchmarks/large_models.py --model llama-1b     # on `meta`: a model without values

Each model runs in a process of its own: it is built, traced, its channels coupled, its weights masked (as modules,
without the proof of the graph), an architecture suggested from a made-up table of ratios, and a report written of a
made-up run with its layers. Seconds are of processor time on one thread; memory is the process's peak after each stage.

With ``--depths``, the same for multilayer perceptrons of so many layers: a stage that takes four times as long for
twice the layers is quadratic.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch
from torch import nn

from dst_analyze import mask_model, rank_layers, suggest_widths, trace_model, write_report
from dst_analyze.channels.coupling import couple_channels
from dst_analyze.errors import DstError
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.sweep.planning.description.graph_summary import summarize_graph

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from runs import made_run

Made = tuple[nn.Module, Any]


def resnet_152() -> Made:
    return torchvision_module().models.resnet152(), torch.randn(2, 3, 64, 64)


def vit_l() -> Made:
    return torchvision_module().models.vit_l_16(), torch.randn(2, 3, 224, 224)


def gpt2_medium() -> Made:
    torchvision_module()  # before transformers imports it, which fails beside a CPU build of torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)
    return GPT2LMHeadModel(config), {"input_ids": torch.randint(0, config.vocab_size, (2, 16))}


def llama_1b() -> Made:
    torchvision_module()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32_000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config), {"input_ids": torch.randint(0, config.vocab_size, (2, 16))}


def perceptron(depth: int) -> Made:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(2, 16)


MODELS: dict[str, Callable[[], Made]] = {
    "resnet-152": resnet_152, "vit-l": vit_l, "gpt2-medium": gpt2_medium, "llama-1b": llama_1b,
}  # fmt: skip
STAGES = ("build", "trace", "couple", "mask", "suggest", "report")


def measure(name: str, say: Callable[[dict[str, object]], None]) -> None:
    """Say one row per stage, as soon as it is done."""
    facts: dict[str, object] = {"model": name}

    def stage(what: str, run: Callable[[], Any]) -> Any:
        started = time.process_time()
        try:
            found, note = run(), ""
        except DstError as error:
            found, note = None, error.cause
        seconds = time.process_time() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        measured = {"seconds": round(seconds, 2), "peak_gb": round(peak / 1e9, 2), "note": note}
        say({**facts, "stage": what, **measured})
        return found

    torch.manual_seed(0)
    make = MODELS.get(name) or (lambda: perceptron(int(name)))
    model, inputs = stage("build", make)
    facts["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    traced = stage("trace", lambda: trace_model(model, inputs))
    if traced is None:
        return
    facts["layers"] = len(traced.layers)
    coupling = stage("couple", lambda: couple_channels(traced))
    masked = stage("mask", lambda: mask_model(traced, form="modules"))
    del masked
    frame = ratios([layer.name for layer in traced.layers], [layer.params for layer in traced.layers])
    ranking = rank_layers(frame)
    stage("suggest", lambda: suggest_widths(traced, ranking, coupling=coupling))
    with tempfile.TemporaryDirectory() as scratch:
        names = [layer.name for layer in traced.layers]
        run = made_run(Path(scratch) / "run", names, graph=summarize_graph(traced), readings=4)
        stage("report", lambda: write_report(run.folder))


def ratios(layers: list[str], params: list[int]) -> pd.DataFrame:
    """Return a table of ratios in which later layers keep less."""
    noise = np.random.default_rng(0)
    rows = [
        {"layer": layer, "alpha": alpha, "seed": seed, "remaining": share, "params": size}
        for alpha, level in ((1e-6, 0.9), (1e-5, 0.5), (1e-4, 0.2))
        for seed in range(2)
        for at, (layer, size) in enumerate(zip(layers, params, strict=True))
        for share in [level * (1 - 0.5 * at / len(layers)) * float(noise.uniform(0.95, 1))]
    ]
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=sorted(MODELS))
    parser.add_argument("--depths", type=int, nargs="+", default=[])
    parser.add_argument("--one", help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("model", "layers", "parameters", "stage", "seconds", "peak_gb", "note")
    if given.one:

        def show(row: dict[str, object]) -> None:
            print(*(str(row.get(column, "")).replace(",", ";") for column in columns), sep=",", flush=True)

        measure(given.one, show)
        return
    lines = [",".join(columns)]
    print(lines[0])
    names = [str(depth) for depth in given.depths] or given.model or list(MODELS)
    for name in names:
        with subprocess.Popen([sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip())
        if running.returncode:
            raise SystemExit(f"{name} ended with {running.returncode}")
    if given.out:
        Path(given.out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
