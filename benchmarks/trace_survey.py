"""How far tracing gets on models nobody here wrote: rung, opaque leaves, share of parameters visible in the graph.

    python benchmarks/trace_survey.py --source timm [--limit N] [--only PATTERN] [--out FILE.csv]

Each model is built and traced in a process of its own, which is ended when it takes too long.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
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
COLUMNS = ("source", "name", "rung", "opaque", "visible", "seconds", "nodes", "batch", "remark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=SOURCES, required=True)
    parser.add_argument("--limit", type=int, help="only the first N models")
    parser.add_argument("--only", default="*", help="only models whose name matches this shell pattern")
    parser.add_argument("--out", type=Path, help="a CSV file of the results")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one model")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.source, options.worker)))
        return
    names = [model.name for model in SOURCES[options.source]() if fnmatch(model.name, options.only)][: options.limit]
    rows = []
    for row in survey(options.source, names, options.timeout):
        rows.append(row)
        print(
            f"{row['name']:45} rung {row['rung']}  opaque {row['opaque']:2}  visible {row['visible']:7.2%}"
            f"  {row['seconds']:5.1f} s  {row['nodes']:5} nodes  {row['remark']}",
            flush=True,
        )
    for source in dict.fromkeys(row["source"] for row in rows):
        print(summary(source, [row for row in rows if row["source"] == source]))
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


def survey(source: str, names: list[str], timeout: float) -> Iterator[dict[str, Any]]:
    for name in names:
        command = [sys.executable, __file__, "--source", source, "--worker", name]
        failed = {
            "source": source,
            "name": name,
            "rung": 0,
            "opaque": 0,
            "visible": 0.0,
            "seconds": 0.0,
            "nodes": 0,
            "batch": "",
        }
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
            yield json.loads(run.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            yield failed | {"seconds": timeout, "remark": "timed out"}
        except subprocess.CalledProcessError as error:
            yield failed | {"remark": (error.stderr.splitlines() or [f"exit code {error.returncode}"])[-1]}


def measure(source: str, name: str) -> dict[str, Any]:
    """Build and trace one model, here."""
    from dst_analyze.model.graph import trace_graph

    entry = next(model for model in SOURCES[source]() if model.name == name)
    model = entry.build()
    inputs = entry.inputs(model)
    start = time.perf_counter()
    trace = trace_graph(model, inputs)
    seconds = time.perf_counter() - start
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    visible = sum(size for name, size in sizes.items() if name in trace.parameters) / max(sum(sizes.values()), 1)
    caveats = [note for note in trace.notes if note.startswith(("holds", "checked"))]
    reasons = [f"{opaque.name}: {opaque.reason}" for opaque in trace.opaque]
    return {
        "source": entry.source,
        "name": name,
        "rung": trace.rung,
        "opaque": len(trace.opaque) if trace.graph_module else 0,
        "visible": visible,
        "seconds": seconds,
        "nodes": len(trace.graph_module.graph.nodes) if trace.graph_module else 0,
        "batch": "one" if any("batch" in note for note in caveats) else "any",
        "remark": "; ".join([*caveats, *reasons[:2]]),
    }


def summary(source: str, rows: list[dict[str, Any]]) -> str:
    graphs = [row for row in rows if row["rung"] in (1, 2)]
    rungs = ", ".join(f"{sum(row['rung'] == rung for row in rows)} on rung {rung}" for rung in (1, 2, 3))
    return "; ".join(
        (
            f"{source}: {len(rows)} models, {rungs}, {sum(row['rung'] == 0 for row in rows)} not measured",
            f"of {len(graphs)} graphs {sum(not row['opaque'] for row in graphs)} have no opaque leaf",
            f"{sum(row['visible'] > 0.99 for row in graphs)} show over 99 % of the parameters",
            f"{sum(row['batch'] == 'any' for row in graphs)} hold for another batch size",
            f"median {statistics.median(row['seconds'] for row in rows):.1f} s",
        )
    )


if __name__ == "__main__":
    main()
