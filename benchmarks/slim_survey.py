"""How far slimming gets on models nobody here wrote.

    python benchmarks/slim_survey.py --out FILE.jsonl [--source torchvision.classification] [--only PATTERN ...]
                                     [--target-params 0.5]

For each model half of the units of every removable group leave at random; with ``--target-params`` what a plan of that
size removes, from densities drawn at random. Then: is the budget met to 2 %; does every parameter have the planned
shape; does the slim model run forward and backward in training mode at two batch sizes; does it compute what the model
computes whose removed channels were zeroed (`exact`: groups whose removal can be exact, in float64, or in float32
where the model insists on it); does its source build it again with identical outputs. A row also has the notes on what
it does otherwise than the model in training mode or without optional inputs. One process per model, one line of JSON
each; lines already in FILE are kept.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "support")]  # run from anywhere

import zoo_models  # noqa: E402
import zoo_packages  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

FACTORIES = {
    "torchvision": zoo_models.torchvision_models,
    "timm": zoo_models.timm_models,
    "transformers": zoo_models.transformers_models,
    "packages": zoo_packages.package_models,
}
STAGES = ("coupled", "budget", "shapes", "trains", "exact", "source")


class Written(NamedTuple):
    """Of a slim model's file: its lines, and whether it builds the same model."""

    lines: int
    equal: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="torchvision.classification", help="as far as it is given")
    parser.add_argument("--only", nargs="*", default=["*"], help="only models whose name matches a shell pattern")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one model")
    parser.add_argument("--target-params", type=float, metavar="SHARE")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.source, options.worker, options.target_params)))
        return
    done = {row["name"]: row for row in _rows(options.out)}
    for entry in _entries(options.source):
        if entry.name in done or not any(fnmatch(entry.name, pattern) for pattern in options.only):
            continue
        row = _in_a_process(options, entry.name)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(_shown(row), flush=True)
    print(summary(_rows(options.out)))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _entries(source: str) -> list[zoo_models.ZooModel]:
    return [entry for entry in FACTORIES[source.partition(".")[0]]() if entry.source.startswith(source)]


def _in_a_process(options: argparse.Namespace, name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--source", options.source, "--worker", name, "--out", "-"]
    if options.target_params:
        command += ["--target-params", str(options.target_params)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"not done after {options.timeout:.0f} s"}
    last = run.stdout.strip().rpartition("\n")[2]
    return json.loads(last) if last.startswith("{") else {"name": name, "error": run.stderr.strip()[-300:]}


def measure(source: str, name: str, share: float | None) -> dict[str, Any]:
    """Everything about one model, as far as it gets."""
    import torch
    from slim_checks import planned_shapes

    from dst_analyze import couple_channels
    from dst_analyze.model.tracing.trace import trace_model
    from dst_analyze.slimming.conditions import choose
    from dst_analyze.slimming.planning.budget import TOLERANCE
    from dst_analyze.slimming.surgery.build import slim

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    entry = next(entry for entry in _entries(source) if entry.name == name)
    model = stirred(entry.build())
    inputs = entry.inputs(model)
    row: dict[str, Any] = {"name": name, **dict.fromkeys(STAGES, False)}
    try:
        traced = trace_model(model, inputs)
        start = time.perf_counter()
        coupling = couple_channels(traced)
        row |= {"rung": traced.rung, "coupling_seconds": round(time.perf_counter() - start, 2)}
        row |= {"groups": len(coupling.groups), "removable": len(coupling.removable)}
        row["coupled"] = bool(coupling.removable)
        start = time.perf_counter()
        if share is None:
            rng = random.Random(0)
            removal = {group.name: rng.sample(range(group.width), group.width // 2) for group in coupling.removable}
            row["budget"] = True
        else:
            plan = plan_at_random(traced, coupling, share)
            removal = plan.removal
            row |= {"budget": abs(plan.reached["params"] / share - 1) <= TOLERANCE, "notes": plan.notes}
            removal = {group.name: removal.get(group.name, ()) for group in coupling.removable}
        small = slim(traced, removal, coupling=coupling)
        row["slim_seconds"] = round(time.perf_counter() - start, 2)
        branches = [node for node in small.graph.nodes if str(node.target) == "training" or node.target is choose]
        row |= {"by_condition": len(branches), "mode_notes": list(small.meta["notes"])}
        row["params"] = [sum(p.numel() for p in module.parameters()) for module in (traced.graph_module, small)]
        planned = planned_shapes(coupling, removal)
        tensors = {**dict(small.named_parameters()), **dict(small.named_buffers())}
        row["shapes"] = all(tuple(t.shape) == planned.get(key, tuple(t.shape)) for key, t in tensors.items())
        row["source"] = round_trip(small, inputs.tensors()).equal
        row["trains"] = _trains(small, inputs.tensors())
        exact = {name: removal[name] for name in (group.name for group in coupling.removable if not group.inexact)}
        try:
            error, most = difference(traced, coupling, exact, torch.float64), 1e-6
        except RuntimeError:  # it makes tensors of its own, of the type it was written for
            error, most = difference(traced, coupling, exact, torch.float32), 1e-3
        row |= {"exact_groups": len(exact), "error": error, "exact": error < most}
    except Exception as error:
        row["failure"] = f"{type(error).__name__}: {str(error)[:300]}"
    return row


def plan_at_random(traced: Any, coupling: Any, share: float) -> Any:
    """With default options but for the evidence, of which there is none without a sweep."""
    from dst_analyze.slimming.planning.density import GroupEvidence
    from dst_analyze.slimming.planning.plan_types import Limits
    from dst_analyze.slimming.planning.plan_widths import plan_widths

    rng = random.Random(0)
    drawn = {group.name: GroupEvidence.equal(group.width, rng.uniform(0.1, 1)) for group in coupling.removable}
    return plan_widths(traced, coupling, drawn, limits=Limits(), asked={"params": share})


def stirred(model: Any) -> Any:
    """Zero-initialised heads and scales would hide what is wrong before them."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.nan_to_num_(0.0, 0.0, 0.0).clamp_(-10, 10)  # some are left as the memory was
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def _trains(module: Any, tensors: list[Any]) -> bool:
    import torch
    from torch.utils._pytree import tree_leaves

    module.train()
    for repeat in (1, 2):
        module.zero_grad()
        output = module(*(torch.cat([t] * repeat) if t.ndim else t for t in tensors))
        floats = [leaf for leaf in tree_leaves(output) if torch.is_tensor(leaf) and leaf.is_floating_point()]
        sum(leaf.square().mean() for leaf in floats).backward()
        if any(parameter.grad is None for parameter in module.parameters() if parameter.requires_grad):
            return False
    return True


def round_trip(module: Any, tensors: list[Any]) -> Written:
    """Execute the written source of a slim model with its safetensors, and compare its outputs in both modes."""
    import importlib.util

    import torch
    from torch.utils._pytree import tree_leaves

    from dst_analyze.slimming.source.write import write_source

    with tempfile.TemporaryDirectory() as folder:
        path = write_source(module, Path(folder) / "slim_model.py")
        spec = importlib.util.spec_from_file_location("slim_model", path)
        assert spec is not None
        assert spec.loader is not None
        file = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(file)
        again, lines = file.build_model(), len(path.read_text().splitlines())
    if list(again.state_dict()) != list(module.state_dict()):
        return Written(lines, False)
    for mode in (False, True):
        outputs = []
        for one in (module, again):
            torch.manual_seed(1)
            with torch.no_grad():
                outputs.append(tree_leaves(one.train(mode)(*(t.clone() for t in tensors))))
        if not all(_agree(a, b) for a, b in zip(*outputs, strict=True) if torch.is_tensor(a)):
            return Written(lines, False)
    return Written(lines, True)


def _agree(a: Any, b: Any) -> bool:
    """True if equal but for rounding: the source has public functions where the graph has fused private ones."""
    import torch

    if torch.equal(a, b):
        return True
    return a.is_floating_point() and a.shape == b.shape and float((a - b).abs().max()) <= 1e-6 * float(a.abs().max())


def difference(traced: Any, coupling: Any, removal: Any, dtype: Any) -> float:
    """Between the slim model and the model with its removed channels zeroed, relative to how far inputs differ."""
    import torch
    from slim_checks import zero_removed
    from torch.utils._pytree import tree_leaves

    from dst_analyze.slimming.surgery.build import slim

    small = _steady(slim(traced, removal, coupling=coupling), dtype)
    large = _steady(zero_removed(traced, removal, coupling=coupling), dtype)
    tensors = [t.to(dtype) if t.is_floating_point() else t for t in traced.inputs.tensors()]
    worst = 0.0
    outputs = []
    for one in (large, small):
        seed_all(1)  # some sample in eval mode too
        with torch.no_grad(), _EqualNoise():
            outputs.append(tree_leaves(one(*(tensor.clone() for tensor in tensors))))
    with torch.no_grad():
        for a, b in zip(*outputs, strict=True):
            if torch.is_tensor(a) and a.is_floating_point():
                spread, size = float((a - a.mean(0)).abs().max()), float(a.abs().max())
                # The first axis may hold one item: what is left then is rounding.
                worst = max(worst, float((a - b).abs().max()) / max(spread if spread > 1e-9 * size else size, 1e-12))
    return worst


def seed_all(seed: int) -> None:
    """Seed torch, numpy and Python, since models draw from each."""
    import numpy as np
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class _EqualNoise(TorchFunctionMode):
    """Gives all channels the same noise: with fewer of them, other numbers would be drawn for the rest."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        named = getattr(func, "__name__", "") in ("randn", "randn_like", "rand", "rand_like", "normal_", "uniform_")
        return result.fill_(0.5) if named and result.is_floating_point() else result


def _steady(module: Any, dtype: Any) -> Any:
    """In eval mode but for its batch norms: with random weights and half of them gone, signals would die out."""
    from torch.nn.modules.batchnorm import _BatchNorm

    module.to(dtype).eval()
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.train()
    return module


def _shown(row: dict[str, Any]) -> str:
    stages = " ".join(stage if row.get(stage) else f"NOT-{stage}" for stage in STAGES)
    old, new = row.get("params", (0, 0))
    seconds = f"{row.get('coupling_seconds', 0):5.2f} + {row.get('slim_seconds', 0):5.2f} s"
    failure = row.get("failure") or " ".join(row.get("notes", ()))
    return (
        f"{row['name']:28} {stages}  {row.get('removable', 0):3} of {row.get('groups', 0):3} groups,"
        f" {old / 1e6:6.2f} -> {new / 1e6:6.2f} M, {seconds}  {failure}"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    counts = ", ".join(f"{stage} {sum(bool(row.get(stage)) for row in rows)}" for stage in STAGES)
    return f"{len(rows)} models: {counts}"


if __name__ == "__main__":
    main()
