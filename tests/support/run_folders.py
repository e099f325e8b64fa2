"""Run folders as a sweep would leave them, made without one, and their files."""

import numpy as np
import pandas as pd

from dst_analyze import read_run
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.events import ignore_event
from dst_analyze.run.files.masks import pack_masks
from dst_analyze.run.header import RunHeader
from dst_analyze.run.record import (
    READING_COLUMNS,
    STEP_COLUMNS,
    DataSummary,
    Manifest,
    ModelSummary,
    SkippedLayer,
    TrialOutput,
    TrialResult,
)
from dst_analyze.run.writer import open_run

STRANGE_NAMES = ["NA", "0", "a,b", 'say "hi"', "two\nlines", "=1+1", "<img src=x onerror=alert(1)>", "层.$x_1$", "null"]


def make_run(
    path,
    *,
    layers=("conv1", "fc"),
    alphas=(1e-4, 1e-3),
    diverged=(),
    resets=None,
    stand_in=False,
    existing="refuse",
    only=None,
    notices=ignore_event,
    sha256="0",
    **options,
):
    """A small run folder, as a sweep would leave it: later layers keep less of their weights, larger alphas too."""
    config = SweepConfig.checked(model="m.py", alphas=alphas, **options)
    facts = pd.DataFrame(
        {
            "layer": layers,
            "kind": "Linear",
            "parameter": [f"{name}.weight" for name in layers],
            "shape": "[10, 10]",
            "params": 100,
            "macs": 1000,
            "macs_note": "",
            "output_shape": "[2, 10]",
            "rung": 1,
            "op": "linear",
        }
    )
    manifest = Manifest(
        versions={"dst-analyze": "0", "torch": "2"},
        model=ModelSummary(
            name="m",
            spec="m.py",
            sha256=None,
            params=220,
            macs=2000,
            rung=1,
            coverage="all of it",
            skipped=(SkippedLayer(name="norm.weight", reason="normalisation", params=20),),
            uncounted=("aten::strange",),
            notes=("a note",),
        ),
        data=DataSummary(description="data", stand_in=stand_in, score="accuracy", scored_on="test", sha256=sha256),
        steps=40,
        optimizer="SGD",
        threads=1,
    )
    with open_run(path, RunHeader(config, manifest, facts), existing, notices) as folder:
        for key in folder.look().missing[:only]:
            failed = key.alpha in diverged
            rows = [
                (step, name, 1 / (1 + i) if step < 30 else 0.5 / (1 + i + rank))
                for step in range(10, 41, 10)
                for i, name in enumerate(layers)
                for rank in ([config.alphas.index(key.alpha)] if key.alpha else [])
            ]
            result = TrialResult(
                alpha=key.alpha,
                seed=key.seed,
                status="diverged" if failed else "done",
                steps=7 if failed else 40,
                loss=None if failed else 0.1,
                score=None if failed else 0.9,
                remaining=0.4 if key.alpha and not failed else None,
                resets=(resets or {}) if key.alpha else {},
            )
            masks = pack_masks({name: np.eye(3, 5) > 0 for name in layers}) if key.alpha and not failed else None
            readings = pd.DataFrame(rows, columns=["step", "layer", "remaining"]).reindex(columns=READING_COLUMNS)
            folder.write_trial(TrialOutput(result, readings, pd.DataFrame(columns=STEP_COLUMNS), masks, 1.5))
    return read_run(path) if only is None else None


def files_of(folder, *, timings=False):
    """Every file by its path: what must be the same, byte for byte, however a run came about."""
    never = {".lock", "report.html", *(() if timings else ("timing.json", "latency.json"))}
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in never
    }
