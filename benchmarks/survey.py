"""How far reading and masking get on models nobody here wrote.

    python benchmarks/survey.py --source timm [--limit N] [--only PATTERN] [--out FILE.csv]

For each model: the rung of its graph, opaque leaves, the share of parameters visible in the graph, the share of matmul
and convolution weights masked, and whether the masked model is exact: equal to the original to the bit with thresholds
at zero, and to its own `unmasked()` with random ones; in which form it trains and is scored, as a graph or as modules,
and if as modules, why. A model that hangs or crashes costs its own row only.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import queue
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # run from anywhere, installed or not

import zoo_models  # noqa: E402

SOURCES = {
    "torchvision": zoo_models.torchvision_models,
    "timm": zoo_models.timm_models,
    "transformers": zoo_models.transformers_models,
}
EMPTY = {
    "source": "",
    "name": "",
    "rung": 0,
    "opaque": 0,
    "visible": 0.0,
    "covered": 0.0,
    "layers": 0,
    "exact": False,
    "train": "",
    "eval": "",
    "why": "",
    "proof": 0.0,
    "seconds": 0.0,
    "remark": "",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=SOURCES, required=True)
    parser.add_argument("--limit", type=int, help="only the first N models")
    parser.add_argument("--only", default="*", help="only models whose name matches this shell pattern")
    parser.add_argument("--out", type=Path, help="a CSV file of the results")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one model")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.source, options.worker)
        return
    names = [model.name for model in SOURCES[options.source]() if fnmatch(model.name, options.only)][: options.limit]
    rows = []
    for row in survey(options.source, names, options.timeout):
        rows.append(row)
        print(
            f"{row['name']:45} rung {row['rung']}  opaque {row['opaque']:2}  visible {row['visible']:7.2%}"
            f"  masked {row['covered']:7.2%} of {row['layers']:4} weights, {'exact' if row['exact'] else 'NOT EXACT'}"
            f"  {row['train']:7} {row['eval']:7} {row['why'][:90]}"
            f"  {row['seconds']:5.1f} s + {row['proof']:.1f} s  {row['remark']}",
            flush=True,
        )
    for source in dict.fromkeys(row["source"] for row in rows):
        print(summary(source, [row for row in rows if row["source"] == source]))
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(EMPTY))
            writer.writeheader()
            writer.writerows(rows)


def survey(source: str, names: list[str], timeout: float) -> Iterator[dict[str, Any]]:
    """A row for each name. A worker goes on until it dies or hangs: the next one takes over after that model."""
    done = 0
    while done < len(names):
        command = [sys.executable, __file__, "--source", source, "--worker", *names[done:]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
            lines: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_forward, args=(worker.stdout, lines), daemon=True).start()
            while done < len(names):
                try:
                    line = lines.get(timeout=timeout)
                except queue.Empty:
                    line = ""
                row = json.loads(line) if line else {"name": names[done], "source": source, "remark": "hung or died"}
                yield EMPTY | row
                done += 1
                if not line:
                    break
            worker.kill()


def _forward(stream: Any, lines: queue.Queue[str]) -> None:
    for line in stream:
        if line.startswith("{"):
            lines.put(line)
    lines.put("")


def work(source: str, names: list[str]) -> None:
    """Measure models one after another and print a line of JSON for each."""
    entries = {model.name: model for model in SOURCES[source]()}
    for name in names:
        try:
            row = measure(entries[name])
        except Exception as error:
            row = {"source": source, "name": name, "remark": f"{type(error).__name__}: {str(error)[:200]}"}
        print(json.dumps(row), flush=True)
        gc.collect()


def measure(entry: zoo_models.ZooModel) -> dict[str, Any]:
    """Build, trace and mask one model, here."""
    import torch

    from dst_analyze.masking.masked import mask_model
    from dst_analyze.model.tracing.trace import trace_model

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = entry.build()
    with torch.no_grad():
        for parameter in model.parameters():  # zero-initialised heads would make every comparison succeed
            if parameter.ndim > 1 and parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter), alpha=0.01)
    inputs = entry.inputs(model)
    start = time.perf_counter()
    traced = trace_model(model, inputs)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    masked = mask_model(traced).eval()
    proof, form = time.perf_counter() - start, masked.form
    exact = _same(inputs, model.eval(), masked)
    with torch.no_grad():
        masked.thresholds.uniform_(-0.01, 0.03)
    exact &= _same(inputs, masked.unmasked(), masked)
    caveats = [note for note in traced.notes if note.startswith(("holds", "checked"))]
    reasons = [f"{opaque.name}: {opaque.reason}" for opaque in traced.graph.opaque]
    return EMPTY | {
        "source": entry.source,
        "name": entry.name,
        "rung": traced.rung,
        "opaque": len(traced.graph.opaque) if traced.graph_module else 0,
        "visible": traced.coverage.parameters,
        "covered": traced.coverage.weights,
        "layers": len(traced.layers),
        "exact": exact,
        "train": form.train,
        "eval": form.eval,
        "why": f"{form.reason} {form.place}".strip(),
        "proof": round(proof, 2),
        "seconds": round(seconds, 2),
        "remark": "; ".join([*caveats, *reasons[:2]]),
    }


def _same(inputs: Any, one: Any, other: Any) -> bool:
    """Whether two models give the same bits, NaN equal to NaN."""
    import torch
    from torch.utils._pytree import tree_leaves

    outputs = []
    for model in (one, other):
        torch.manual_seed(1)
        with torch.no_grad():
            leaves = tree_leaves(inputs.call(model))
        outputs.append([leaf.nan_to_num() for leaf in leaves if isinstance(leaf, torch.Tensor)])
    return len(outputs[0]) > 0 and all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


def summary(source: str, rows: list[dict[str, Any]]) -> str:
    graphs = [row for row in rows if row["rung"] in (1, 2)]
    rungs = ", ".join(f"{sum(row['rung'] == rung for row in rows)} on rung {rung}" for rung in (1, 2, 3))
    return (
        f"{source}: {len(rows)} models, {rungs}, {sum(row['rung'] == 0 for row in rows)} not measured; of"
        f" those with a graph {sum(row['visible'] > 0.99 for row in graphs)} show over 99 % of their parameters; masked"
        f" with over 99 % of their weights {sum(row['covered'] > 0.99 for row in rows)}, exact"
        f" {sum(row['exact'] for row in rows)}; trained as a graph"
        f" {sum(row['train'] == 'graph' for row in graphs)} of {len(graphs)} that have one, scored as a graph"
        f" {sum(row['eval'] == 'graph' for row in graphs)};"
        f" median {statistics.median(row['seconds'] for row in rows):.1f} s"
    )


if __name__ == "__main__":
    main()
