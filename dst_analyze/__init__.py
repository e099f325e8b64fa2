"""Rank the layers of a PyTorch model by redundancy, and suggest slimmer architectures.

Public names are loaded on first use: ``import dst_analyze`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dst_analyze.deprecation import warn_renamed
from dst_analyze.errors import DstError
from dst_analyze.model.loading.module_finder import make_findable
from dst_analyze.version import __version__

if TYPE_CHECKING:
    from dst_analyze.analysis import Analysis, analyze
    from dst_analyze.channels.coupling import couple_channels
    from dst_analyze.channels.groups import Coupling
    from dst_analyze.channels.rule_call import register_channel_rule
    from dst_analyze.integrations.formats import export_model
    from dst_analyze.masking.masked import MaskedModel, mask_model
    from dst_analyze.masking.training.attach import attach
    from dst_analyze.model.loading.load import LoadedModel, load_model
    from dst_analyze.model.tracing.registered import register_masked
    from dst_analyze.model.tracing.trace import TracedModel, trace_model
    from dst_analyze.model.tracing.weight_ops import WeightArgument, register_weight_op
    from dst_analyze.ranking.rank import rank_layers
    from dst_analyze.ranking.result import Ranking
    from dst_analyze.report.page import write_report
    from dst_analyze.run.files.masks import read_masks
    from dst_analyze.run.reader import read_run
    from dst_analyze.run.record import SweepRecord
    from dst_analyze.slimming.exact.remove import remove_dead_channels
    from dst_analyze.slimming.planning.plan_types import SlimPlan
    from dst_analyze.slimming.planning.suggest import suggest_widths
    from dst_analyze.slimming.proof.result import Verification
    from dst_analyze.slimming.proof.verify import verify_plan
    from dst_analyze.slimming.source.write import write_source
    from dst_analyze.slimming.surgery.slim_model import slim_model
    from dst_analyze.study.study import Study
    from dst_analyze.sweep.run_sweep import run_sweep

_HOMES = {
    "Analysis": "analysis",
    "Coupling": "channels.groups",
    "LoadedModel": "model.loading.load",
    "MaskedModel": "masking.masked",
    "Ranking": "ranking.result",
    "Study": "study.study",
    "SlimPlan": "slimming.planning.plan_types",
    "SweepRecord": "run.record",
    "TracedModel": "model.tracing.trace",
    "Verification": "slimming.proof.result",
    "WeightArgument": "model.tracing.weight_ops",
    "analyze": "analysis",
    "couple_channels": "channels.coupling",
    "export_model": "integrations.formats",
    "load_model": "model.loading.load",
    "mask_model": "masking.masked",
    "rank_layers": "ranking.rank",
    "read_masks": "run.files.masks",
    "read_run": "run.reader",
    "register_channel_rule": "channels.rule_call",
    "attach": "masking.training.attach",
    "register_masked": "model.tracing.registered",
    "register_weight_op": "model.tracing.weight_ops",
    "remove_dead_channels": "slimming.exact.remove",
    "run_sweep": "sweep.run_sweep",
    "slim_model": "slimming.surgery.slim_model",
    "suggest_widths": "slimming.planning.suggest",
    "trace_model": "model.tracing.trace",
    "verify_plan": "slimming.proof.verify",
    "write_report": "report.page",
    "write_source": "slimming.source.write",
}

_RENAMED = {"exact_slim": "remove_dead_channels"}
"""Old names, importable for one release."""

__all__ = [
    "Analysis",
    "Coupling",
    "DstError",
    "LoadedModel",
    "MaskedModel",
    "Ranking",
    "SlimPlan",
    "Study",
    "SweepRecord",
    "TracedModel",
    "Verification",
    "WeightArgument",
    "__version__",
    "analyze",
    "attach",
    "couple_channels",
    "export_model",
    "load_model",
    "mask_model",
    "rank_layers",
    "read_masks",
    "read_run",
    "register_channel_rule",
    "register_masked",
    "register_weight_op",
    "remove_dead_channels",
    "run_sweep",
    "slim_model",
    "suggest_widths",
    "trace_model",
    "verify_plan",
    "write_report",
    "write_source",
]


make_findable()


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warn_renamed(f"dst_analyze.{name}", f"dst_analyze.{_RENAMED[name]}")
        return __getattr__(_RENAMED[name])
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
