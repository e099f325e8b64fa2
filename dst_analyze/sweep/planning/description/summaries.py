"""What a run folder's manifest says of the model and the versions, for sweeps and studies alike."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

import torch

from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.record import ModelSummary, SkippedLayer
from dst_analyze.version import __version__


def used_versions() -> dict[str, str]:
    """Return the versions that decide results to the bit."""
    return {
        "dst-analyze": __version__,
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
    }


def summarize_model(
    traced: TracedModel,
    *,
    name: str,
    spec: str,
    sha256: str | None = None,
    form: str = "",
    files: Mapping[str, str] | None = None,
    weights: str = "",
) -> ModelSummary:
    """Return what tracing found of a model, beyond its layers."""
    return ModelSummary(
        name=name,
        spec=spec,
        sha256=sha256,
        params=traced.params,
        macs=traced.macs,
        rung=traced.rung,
        coverage=traced.coverage.describe(),
        weights=weights,
        form=form,
        files=dict(files or {}),
        skipped=tuple(
            SkippedLayer(name=s.name, reason=s.reason, place=s.place, params=s.params) for s in traced.skipped
        ),
        uncounted=traced.uncounted,
        notes=traced.notes,
    )
