"""Every step, from the trace to the slim source, on models in public repositories on this disk.

    python benchmarks/repository_survey.py FOLDER --out FILE.jsonl [--set seen|held] [--only PATTERN ...]
    python benchmarks/repository_survey.py --summary FILE.jsonl

FOLDER holds a checkout of each repository of `repository_models.py` as OWNER+NAME. Nothing of them is kept here: a
row of the table names a file, how to build the model and what to call it with. A file is imported; if it is a script
that would train, only its imports, functions and classes are executed.

A model passes if it is traced, its masked form equals it to the bit in both modes, half of its parameters can be
planned away, the slim model has the plan's share of the user's parameters, it computes what the model with zeroed
channels computes, trains at another batch size, and its written source is executed, loads its safetensors and gives
equal outputs. `less` passes every step too, but half cannot be reached (widths are multiples of 8, or the rest is
frozen). Else it is told what it is: `frozen` (no group of channels can be removed), `fails` (with the step), `wrong`
(a result that differs and was not noticed), `not loaded` (the repository's model does not run, or train, here). The
column `lines` has the lines of the source, and of the model's classes. A third of the repositories, by the hash of
the name, is held back (`--set held`): what fails there is not mended before it is counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "support")]  # run from anywhere

import torch  # noqa: E402
from repository_models import Entry, entries, load  # noqa: E402
from slim_survey import difference, plan_at_random, round_trip, seed_all, stirred  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from dst_analyze import couple_channels  # noqa: E402
from dst_analyze.masking.masked import mask_model  # noqa: E402
from dst_analyze.model.inputs.inputs import Inputs  # noqa: E402
from dst_analyze.model.isolation import in_mode  # noqa: E402
from dst_analyze.model.loading.torchvision_compat import make_importable  # noqa: E402
from dst_analyze.model.tracing.trace import trace_model  # noqa: E402
from dst_analyze.slimming.planning.budget import TOLERANCE  # noqa: E402
from dst_analyze.slimming.surgery.build import slim  # noqa: E402

SHARE = 0.5
OUTCOMES = ("passes", "less", "frozen", "fails", "wrong", "not loaded")


class WrongError(Exception):
    """A result that differs from the original's."""


class UntrainableError(Exception):
    """The repository's own model cannot be trained with this torch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the repositories are")
    parser.add_argument("--out", type=Path, help="a line of JSON per model; those already there are kept")
    parser.add_argument("--set", choices=("seen", "held"), help="only repositories of this set")
    parser.add_argument("--only", nargs="*", default=["*"], help="only models whose name matches a shell pattern")
    parser.add_argument("--timeout", type=float, default=90, help="seconds of CPU for one model")
    parser.add_argument("--load-only", action="store_true", help="build and call every model, and nothing else")
    parser.add_argument("--summary", type=Path, nargs="*", help="count the rows of these files and stop")
    options = parser.parse_args()
    if options.summary:
        print(summary([row for path in options.summary for row in _rows(path)]))
        return
    if not options.folder:
        parser.error("the folder with the repositories is missing")
    torch.set_num_threads(1)
    _import_common()
    done = {row["name"] for row in _rows(options.out)}
    rows = []
    for entry in entries():
        if entry.name in done or options.set not in (None, entry.set):
            continue
        if not any(fnmatch(entry.name, pattern) for pattern in options.only):
            continue
        rows.append(_in_a_process(entry, options))
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        print(_shown(rows[-1]), flush=True)
    print(summary(_rows(options.out) or rows))


_COMMON = (
    "torchvision.models", "torchvision.datasets", "torchvision.utils", "einops.layers.torch", "timm", "scipy.stats",
    "pandas", "matplotlib.pyplot", "sklearn.metrics", "tqdm.auto", "accelerate",
)  # fmt: skip


def _import_common() -> None:
    """Import once what many repositories import, before there are forks."""
    make_importable()
    for name in _COMMON:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def _rows(path: Path | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def _in_a_process(entry: Entry, options: argparse.Namespace) -> dict[str, Any]:
    """A fork has torch imported already, and what a model does to it ends with it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure_into, args=(theirs, entry, options))
    process.start()
    theirs.close()
    head = {"name": entry.name, "repository": entry.repository, "commit": entry.commit, "set": entry.set}
    try:
        return {**head, **ours.recv()}
    except EOFError:
        process.join()
        slow = process.exitcode == -signal.SIGXCPU
        why = f"not done after {options.timeout:.0f} s of CPU" if slow else f"the process died ({process.exitcode})"
        return {**head, "outcome": "fails", "step": "time" if slow else "crash", "why": why}
    finally:
        process.join()


def _measure_into(pipe: Any, entry: Entry, options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    used = int(time.process_time() + options.timeout)
    resource.setrlimit(resource.RLIMIT_CPU, (used, used + 5))
    pipe.send(measure(entry, options.folder, load_only=options.load_only))


def measure(entry: Entry, folder: Path, *, load_only: bool = False) -> dict[str, Any]:
    """Everything about one model, as far as it gets."""
    row: dict[str, Any] = {"outcome": "passes", "step": "load"}
    start = time.process_time()
    try:
        torch.manual_seed(0)
        model, inputs, others = load(entry, folder)
        model = stirred(in_mode(model, training=False))
        with torch.no_grad():  # what fails here is the table's fault, or the repository's
            if not any(map(torch.is_tensor, tree_leaves(inputs.map(torch.clone).call(model)))):
                raise TypeError("the model returns no tensor")
    except Exception as error:
        return row | {"outcome": "not loaded", "why": _told(error)}
    if load_only:
        return row | {"params": [_parameters(model)] * 2, "seconds": round(time.process_time() - start, 1)}
    try:
        _steps(row, model, inputs, others)
    except UntrainableError as error:
        row |= {"outcome": "not loaded", "why": f"the model itself cannot be trained: {str(error)[:200]}"}
    except WrongError as error:
        row |= {"outcome": "wrong", "why": str(error)}
    except Exception as error:
        row |= {"outcome": "fails", "why": _told(error)}
    return row | {"seconds": round(time.process_time() - start, 1)}


def _steps(row: dict[str, Any], model: nn.Module, inputs: Inputs, others: list[Inputs]) -> None:
    row["step"] = "trace"
    traced = trace_model(model, inputs)
    row |= {"rung": traced.rung, "covered": round(traced.coverage.weights, 3)}
    row["step"] = "mask"
    masked = mask_model(traced)
    row["form"] = f"{masked.form.train}/{masked.form.eval}"
    for mode in (False, True):
        if not _equal(model, masked, inputs, mode):
            raise WrongError(f"the masked model differs in {'training' if mode else 'eval'} mode")
    row["step"] = "couple"
    coupling = couple_channels(traced)
    row |= {"groups": len(coupling.groups), "removable": len(coupling.removable)}
    row["frozen"] = sorted({str(reason)[:200] for group in coupling.groups for reason in group.frozen})[:8]
    if not coupling.removable:
        row |= {"outcome": "frozen", "why": "no group of channels can be removed"}
        return
    row["step"] = "plan"
    plan = plan_at_random(traced, coupling, SHARE)
    row |= {"share": round(plan.reached["params"], 4), "notes": list(plan.notes)}
    row["step"] = "build"
    small = slim(traced, plan.removal, coupling=coupling)
    before, after = _parameters(model), _parameters(small)
    row |= {"params": [before, after], "mode_notes": list(small.meta["notes"])}
    if abs(after / before / plan.reached["params"] - 1) > TOLERANCE:
        raise WrongError(
            f"the plan says {plan.reached['params']:.1%} of the parameters, the model has {after / before:.1%}"
        )
    row["step"] = "source"
    written = round_trip(small, inputs.tensors())
    row["lines"] = [written.lines, _own_lines(model)]
    if not written.equal:
        raise WrongError("the written source computes something else")
    row["step"] = "train"
    for other in [inputs, *others]:
        _train(model, small, other)
    row["step"] = "exact"
    exact = {g.name: plan.removal[g.name] for g in coupling.removable if not g.inexact and g.name in plan.removal}
    try:
        error, most = difference(traced, coupling, exact, torch.float64), 1e-6
    except RuntimeError:  # it makes tensors of its own, of the type it was written for
        error, most = difference(traced, coupling, exact, torch.float32), 1e-3
    row |= {"error": error, "exact_groups": len(exact)}
    if not error < most:
        raise WrongError(f"the slim model is {error:.1e} from the model with zeroed channels")
    row["step"] = "done"
    if plan.reached["params"] > SHARE * (1 + TOLERANCE):
        row |= {"outcome": "less", "why": " ".join(plan.notes)}


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _equal(model: nn.Module, masked: nn.Module, inputs: Inputs, mode: bool) -> bool:
    outputs = []
    for one in (model, masked):
        state = {key: value.clone() for key, value in one.state_dict().items()}
        was = one.training
        seed_all(1)
        with torch.no_grad():
            outputs.append(
                [_comparable(leaf) for leaf in tree_leaves(inputs.map(torch.clone).call(in_mode(one, mode)))]
            )
        in_mode(one, was).load_state_dict(state)
    return len(outputs[0]) == len(outputs[1]) and all(map(_same, *outputs))


def _comparable(leaf: Any) -> Any:
    return leaf.nan_to_num() if isinstance(leaf, torch.Tensor) and not leaf.is_complex() else leaf


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else type(a) is type(b)


def _train(model: nn.Module, small: nn.Module, inputs: Inputs) -> None:
    """Forward and backward in training mode; every parameter that the model trains has a gradient here too."""
    reached = []
    copies = [inputs.map(torch.clone) for _ in range(2)]
    for one, outputs in ((model, copies[0].call), (small, lambda f: f(*copies[1].tensors()))):
        in_mode(one, training=True).zero_grad()
        floats = [t for t in tree_leaves(outputs(one)) if torch.is_tensor(t) and t.is_floating_point()]
        try:
            sum(t.square().mean() for t in floats if t.requires_grad).backward()
        except RuntimeError as error:
            raise UntrainableError(str(error)) if one is model else error  # noqa: B904
        reached.append({name for name, p in one.named_parameters() if p.grad is not None})
        one.zero_grad(set_to_none=True)
    model.eval()
    names = {name for name, _ in small.named_parameters()}
    missing = sorted((reached[0] & names) - reached[1])
    if missing:
        raise WrongError(f"in training mode the slim model gives no gradient to {', '.join(missing[:3])}")


def _own_lines(model: nn.Module) -> int:
    import inspect

    kinds = {type(module) for module in model.modules()}
    total = 0
    for kind in kinds:
        if not kind.__module__.startswith("torch.nn"):
            try:
                total += len(inspect.getsource(kind).splitlines())
            except (OSError, TypeError):
                continue
    return total


def _told(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:400]} ({Path(last.filename).name}:{last.lineno})"


def _shown(row: dict[str, Any]) -> str:
    lines = row.get("lines", [0, 0])
    return (
        f"{row['outcome']:10} {row['name'][:64]:64} {row['step']:7} {row.get('form', ''):15} {row.get('share', 0):6.1%}"
        f" {lines[0]:4}/{lines[1]:4} {row.get('seconds', 0):5.1f} s  {row.get('why', '')[:220]}"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Counts by set and outcome, and how long the sources are."""
    told = []
    for name in sorted({row["set"] for row in rows}):
        own = [row for row in rows if row["set"] == name]
        tried = [row for row in own if row["outcome"] != "not loaded"]
        counts = Counter(row["outcome"] for row in own)
        long = [row for row in tried if row.get("lines", [0, 0])[0] > 3 * max(row.get("lines", [0, 1])[1], 40)]
        repositories = len({row["repository"] for row in tried})
        told.append(
            f"{name}: {len(tried)} models of {repositories} repositories: "
            + ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
            + f"; longest source {max((row['lines'][0] for row in tried if 'lines' in row), default=0)} lines,"
            + f" {len(long)} more than three times their own"
        )
    return "\n".join(told)


if __name__ == "__main__":
    main()
