"""Which layers of a PyTorch model are redundant, with evidence, and what a slimmer one would look like.

The public names are loaded when they are first used: ``import dst_analyze`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dst_analyze.errors import DstError
from dst_analyze.namesakes import make_findable
from dst_analyze.version import __version__

if TYPE_CHECKING:
    from dst_analyze.analysis import Analysis, analyze
    from dst_analyze.masking.masked import MaskedModel, mask_model
    from dst_analyze.model.loading import load_model
    from dst_analyze.model.registered import register_masked
    from dst_analyze.model.tracing import TracedModel, trace_model
    from dst_analyze.ranking.rank import rank_layers
    from dst_analyze.ranking.result import Ranking
    from dst_analyze.report.page import write_report
    from dst_analyze.slimming.calls import register_channel_rule
    from dst_analyze.slimming.exact import exact_slim
    from dst_analyze.slimming.plan import slim_model, suggest_widths
    from dst_analyze.slimming.source import write_source
    from dst_analyze.slimming.values import SlimPlan, Verification
    from dst_analyze.slimming.verify import verify_plan
    from dst_analyze.sweep.grid import run_sweep
    from dst_analyze.sweep.record import SweepRecord

_HOMES = {
    "Analysis": "analysis",
    "MaskedModel": "masking.masked",
    "Ranking": "ranking.result",
    "SlimPlan": "slimming.values",
    "SweepRecord": "sweep.record",
    "TracedModel": "model.tracing",
    "Verification": "slimming.values",
    "analyze": "analysis",
    "exact_slim": "slimming.exact",
    "load_model": "model.loading",
    "mask_model": "masking.masked",
    "rank_layers": "ranking.rank",
    "register_channel_rule": "slimming.calls",
    "register_masked": "model.registered",
    "run_sweep": "sweep.grid",
    "slim_model": "slimming.plan",
    "suggest_widths": "slimming.plan",
    "trace_model": "model.tracing",
    "verify_plan": "slimming.verify",
    "write_report": "report.page",
    "write_source": "slimming.source",
}

__all__ = [
    "Analysis",
    "DstError",
    "MaskedModel",
    "Ranking",
    "SlimPlan",
    "SweepRecord",
    "TracedModel",
    "Verification",
    "__version__",
    "analyze",
    "exact_slim",
    "load_model",
    "mask_model",
    "rank_layers",
    "register_channel_rule",
    "register_masked",
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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
