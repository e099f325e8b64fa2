"""The model card of an exported model: what was slimmed, by which evidence, proven how, and how to load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dst_analyze.run.files.paths import SLIM_SOURCE
from dst_analyze.slimming.exports.result import SlimResult
from dst_analyze.slimming.kept import read_proof
from dst_analyze.text import short
from dst_analyze.version import __version__

_MOST_ROWS = 60


@dataclass(frozen=True)
class Loading:
    """How the model is loaded: by its class's ``from_pretrained``, or by its source where ``why`` says that."""

    library: str
    kind: str
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    why: str = ""


def model_card(result: SlimResult, loading: Loading) -> str:
    """Return the text of README.md."""
    plan = result.plan
    assert plan is not None
    blocks = [
        _front(loading),
        f"# {plan.model}, slimmed",
        f"{short(plan.params)} -> {short(plan.new_params)} parameters ({plan.new_params / plan.params:.1%})"
        + (f", MACs {plan.new_macs / plan.macs:.1%}." if plan.macs and plan.new_macs is not None else "."),
        "**The weights are those that the narrower layers keep of the given model: they have not been trained since."
        " Train the model before it is used.**",
        "## How to load it",
        *_usage(loading),
        "## What was slimmed",
        *_widths(result),
        "## Evidence",
        *_evidence(result),
        "## Proof",
        *_proof(result),
        "## Licence",
        "None is given here: choose one that the licence of the original model and its data allows, and name it as"
        " `license:` at the top of this file.",
    ]
    return "\n\n".join(blocks) + "\n"


def _front(loading: Loading) -> str:
    return "\n".join(["---", f"library_name: {loading.library}", "tags:", "- dst-analyze", "- pruned", "---"])


def _usage(loading: Loading) -> Iterator[str]:
    if not loading.why:
        yield (
            f"```python\nfrom {loading.library} import {loading.kind}\n\n"
            f'model = {loading.kind}.from_pretrained("THIS_FOLDER")\n```'
        )
        if loading.changed:
            rows = [f"| `{name}` | {before} | {after} |" for name, (before, after) in loading.changed.items()]
            yield "\n".join(["| in config.json | before | now |", "|---|---|---|", *rows])
        return
    yield f"`from_pretrained` cannot load it: {loading.why}. Its source is beside the weights:"
    module = SLIM_SOURCE.removesuffix(".py")
    yield f"```python\nfrom {module} import build_model  # in this folder\n\nmodel = build_model()\n```"
    yield "It is code: read it before you run it."


def _widths(result: SlimResult) -> Iterator[str]:
    plan = result.plan
    assert plan is not None
    changed = [group for group in plan.groups if group.new_width != group.width]
    if not changed:
        yield "No width is another than before."
        return
    rows = [
        f"| {', '.join(f'`{layer}`' for layer in group.layers)} | {group.width} | {group.new_width} | {group.label} |"
        for group in changed[:_MOST_ROWS]
    ]
    yield "\n".join(["| layers whose channels leave together | width | now | label |", "|---|---|---|---|", *rows])
    if len(changed) > _MOST_ROWS:
        yield f"And {len(changed) - _MOST_ROWS} groups more."
    yield from (f"- {note}" for note in plan.notes)


def _evidence(result: SlimResult) -> Iterator[str]:
    yield (
        f"By dst-analyze {__version__}: short trainings with a trainable threshold for each row of weights (Dynamic"
        " Sparse Training, Liu et al., ICLR 2020) at several strengths; layers that give their weights up at every"
        " strength are narrowed most."
    )
    record, ranking = result.record, result.ranking
    if record is not None:
        alphas = ", ".join(f"{alpha:g}" for alpha in record.alphas)
        yield (
            f"Strengths (alpha): {alphas}; seeds: {', '.join(map(str, record.config.seeds))}; "
            f"{record.manifest.steps} steps each; data: {record.manifest.data.description}."
        )
    if ranking is not None:
        yield f"The ranking of the layers: {ranking.verdict}: {ranking.why}."
    if result.plan is not None and not result.plan.is_advice:
        yield "This is the result of a rehearsal: so few steps are no evidence."


def _proof(result: SlimResult) -> Iterator[str]:
    proof = read_proof(result.record) if result.record is not None else None
    if proof is None or result.plan is None or proof.plan != result.plan.sha256:
        yield "None: the slim model has not been trained against others of its size (`dst-analyze verify`)."
        return
    yield f"Trained alike for {proof.steps} steps, seeds {', '.join(map(str, proof.seeds))}; {proof.score}:"
    rows = [f"| {entry.name} | {entry.params:,} | {entry.mean:.4g} |" for entry in proof.entries]
    yield "\n".join(["| model | parameters | mean |", "|---|---|---|", *rows])
    yield proof.verdict
