"""What a run folder looks like: the only place that knows its names, and whose files are whose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dst_analyze.run.atomic_io import SUMS, is_leftover
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.lock import LOCK, OWNER
from dst_analyze.run.record import TrialKey
from dst_analyze.run.safe_read import JSON_MOST, read_text

CONFIG, MANIFEST, LAYERS, TRIALS = "config.json", "manifest.json", "layers.csv", "trials"
GRAPH, GROUPS, INPUTS = "graph.json", "groups.csv", "inputs.json"
"""Not of every model: there are some whose graph nobody can draw, or whose inputs are no tensors."""
HEADER = (MANIFEST, CONFIG, LAYERS)
TABLE, TRIAL_TABLE, WIDTHS, REPORT = "table.csv", "trials.csv", "widths.csv", "report.html"
PLAN, SLIM_SOURCE, SLIM_WEIGHTS = "plan.json", "slim_model.py", "slim_model.safetensors"
CHANGES, RATIOS = "changes.csv", "torch_pruning.json"
VERIFICATION, VERIFIED = "verification.json", "verified"
LATENCY = "latency.json"
"""Of the models of a proof: apart from it, as it is never the same twice."""
DERIVED = (TABLE, TRIAL_TABLE, WIDTHS, REPORT, PLAN, SLIM_SOURCE, SLIM_WEIGHTS, CHANGES, RATIOS, VERIFICATION, LATENCY)
"""Made from the trials, or from what was made from them."""
OPTIONS, SCALARS, BASELINES = "run.toml", "tensorboard", "baselines.json"
"""As the command line was given them; what `--tensorboard` has drawn, what `--baselines` has measured."""
RESULT, READINGS, STEPS, TIMING = "trial.json", "record.csv", "steps.csv", "timing.json"
MASKS = "masks.safetensors"

_OURS = {
    CONFIG,
    MANIFEST,
    LAYERS,
    GRAPH,
    GROUPS,
    INPUTS,
    SUMS,
    TRIALS,
    *DERIVED,
    VERIFIED,
    OPTIONS,
    SCALARS,
    BASELINES,
    LOCK,
    OWNER,
}
_OURS_IN_A_TRIAL = {RESULT, READINGS, STEPS, MASKS, TIMING, SUMS}

NAME_COLUMNS = ("layer", "parameter")
GROUP_COLUMNS = ("layer", "group")
LAYER_COLUMNS = ("layer", "kind", "parameter", "shape", "params", "macs", "macs_note", "output_shape", "rung", "op")


def default_path(name: str, config: SweepConfig) -> Path:
    """``reports/<name>-<8 hex digits of the configuration>``; the name may come from anywhere, so it is tamed."""
    tame = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name).strip("-.")[:60]
    return Path("reports") / f"{tame or 'model'}-{config.digest[:8]}"


def trial_folder(run: Path, key: TrialKey) -> Path:
    return run / TRIALS / key.name


def is_run_folder(path: Path) -> bool:
    """Whether a folder carries our manifest; what else it says may be damaged or newer."""
    try:
        return '"tool": "dst-analyze"' in read_text(path / MANIFEST, JSON_MOST)
    except (OSError, UnicodeDecodeError):
        return False


def is_blank(path: Path) -> bool:
    """Whether a run may start here as if nothing were there: at most a lock, or scraps of a run that never started."""
    return not path.exists() or (
        path.is_dir() and all(entry.name in (LOCK, OWNER) or is_leftover(entry.name) for entry in path.iterdir())
    )


def foreign(run: Path) -> list[str]:
    """Files in a run folder that no run has put there."""
    return sorted(str(entry.relative_to(run)) for entry in _foreign(run) if not is_leftover(entry.name))


def foreign_in_trial(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name not in _OURS_IN_A_TRIAL]


def _foreign(run: Path) -> Iterator[Path]:
    yield from (entry for entry in run.iterdir() if entry.name not in _OURS)
    trials = run / TRIALS
    for entry in trials.iterdir() if trials.is_dir() else ():
        if not entry.is_dir() or not entry.name.startswith(("dense,seed=", "alpha=", "control,alpha=", ".")):
            yield entry
        else:
            yield from (entry / name for name in foreign_in_trial(entry))
