"""verdict.json: what a run found, as one small file for programs, and the conditions that `--fail-if` checks on it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from dst_analyze.ranking.result import Ranking
from dst_analyze.report.summary import Summary
from dst_analyze.run.config import Json, Number, Share
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.target import SizeTarget
from dst_analyze.slimming.proof.ladder_result import LadderProof
from dst_analyze.slimming.proof.result import BESIDE, SLIM, LeadStanding, Verification
from dst_analyze.version import __version__

Amount = Annotated[int, Field(ge=0)]
"""A number of parameters, MACs, channels or steps."""


class AnalysedModel(Json):
    """The model that was analysed."""

    name: str
    spec: str
    params: Amount
    macs: Amount | None
    measured_params: Amount  # in the layers that were ranked


class RankingVerdict(Json):
    """How far the trials confirm one order of the layers."""

    verdict: str
    why: str
    caveats: tuple[str, ...]
    kendall_w: Number | None
    alphas: tuple[Number, ...]
    seeds: tuple[int, ...]


class LayerVerdict(Json):
    """One layer: its place in the ranking, its label, and the width that the suggestion gives it."""

    layer: str
    kind: str
    params: Amount
    macs: Amount | None
    label: str
    reason: str
    rank: Number | None
    rank_low: Number | None
    rank_high: Number | None
    redundancy: Number | None
    remaining: Share | None
    spare: Share | None


class GroupWidth(Json):
    """Layers whose output channels leave together, with their width before and after."""

    group: str
    layers: tuple[str, ...]
    width: Amount
    new_width: Amount
    excess: Number | None = None  # times as wide as in proportion to the other groups


class SuggestedSize(Json):
    """The slim architecture: its widths and its size."""

    is_advice: bool  # False for the plan of a rehearsal
    asked: dict[str, Number]
    target: SizeTarget | None = None  # how the size was chosen, if none was asked for
    params: Amount
    new_params: Amount
    macs: Amount | None
    new_macs: Amount | None
    groups: tuple[GroupWidth, ...]
    notes: tuple[str, ...]


class ProvenModel(Json):
    """One model of the proof; ``lead`` is how much better the suggestion scores, with its 95 % interval."""

    name: str
    about: str
    params: Amount
    macs: Amount | None
    score: Number | None
    lead: Number | None
    lead_low: Number | None
    lead_high: Number | None
    standing: LeadStanding | None  # of the suggestion against it


class ProofVerdict(Json):
    """The proof: the suggestion and its rivals, trained alike."""

    score: str
    steps: Amount
    seeds: tuple[int, ...]
    models: tuple[ProvenModel, ...]
    verdict: str
    longer_gain: Number | None = None  # of the dense model, by training longer
    length: str = ""


class LadderSize(Json):
    """The suggestion at one size of a ladder."""

    axis: Literal["params", "macs"]  # what the share is of
    share: Share
    params: Amount
    macs: Amount | None
    score: Number | None


class LadderVerdict(Json):
    """The proof at several sizes; ``verdicts`` has a sentence for each axis."""

    verdicts: dict[Literal["params", "macs"], str]
    sizes: tuple[LadderSize, ...]


class VerdictFile(Json):
    """All that a run found: the contents of verdict.json."""

    schema_version: Literal[1] = 1
    tool: Literal["dst-analyze"] = "dst-analyze"
    version: str = __version__
    answer: str
    warnings: tuple[str, ...]
    model: AnalysedModel
    ranking: RankingVerdict
    layers: tuple[LayerVerdict, ...]
    suggestion: SuggestedSize | None
    proof: ProofVerdict | None
    ladder: LadderVerdict | None = None

    def as_bytes(self) -> bytes:
        """Return the text of the file."""
        return f"{self.model_dump_json(indent=1)}\n".encode()


def verdict_of(
    record: SweepRecord,
    ranking: Ranking,
    summary: Summary,
    plan: SlimPlan | None,
    proof: Verification | None,
    ladder: LadderProof | None = None,
) -> VerdictFile:
    """Return what a run found, layers in rank order; ``plan``, ``proof`` and ``ladder`` may be missing."""
    facts = record.layers.set_index("layer")
    model = record.manifest.model
    return VerdictFile(
        answer=summary.headline,
        warnings=tuple(f"{note.title}: {note.text}" for note in (*summary.warnings, *summary.remarks)),
        model=AnalysedModel(
            name=model.name,
            spec=model.spec,
            params=model.params,
            macs=model.macs,
            measured_params=int(record.layers["params"].sum()),
        ),
        ranking=RankingVerdict(
            verdict=str(ranking.verdict),
            why=ranking.why,
            caveats=tuple(map(str, ranking.caveats)),
            kendall_w=_known(ranking.agreement),
            alphas=tuple(map(float, record.alphas)),
            seeds=tuple(record.config.seeds),
        ),
        layers=tuple(_layer(row, facts.loc[row.layer]) for row in ranking.ordered().itertuples(index=False)),
        suggestion=None if plan is None else _suggestion(plan),
        proof=None if proof is None else _proof(proof),
        ladder=None if ladder is None else _ladder(ladder),
    )


def _layer(row: Any, facts: Any) -> LayerVerdict:
    return LayerVerdict(
        layer=row.layer,
        kind=str(facts["kind"]),
        params=int(facts["params"]),
        macs=None if math.isnan(facts["macs"]) else int(facts["macs"]),
        label=row.label,
        reason=row.reason,
        rank=_known(row.rank),
        rank_low=_known(row.rank_low),
        rank_high=_known(row.rank_high),
        redundancy=_known(row.redundancy),
        remaining=_known(row.remaining),
        spare=_known(row.spare),
    )


def _suggestion(plan: SlimPlan) -> SuggestedSize:
    return SuggestedSize(
        is_advice=plan.is_advice,
        asked=plan.asked,
        target=plan.target,
        params=plan.params,
        new_params=plan.new_params,
        macs=plan.macs,
        new_macs=plan.new_macs,
        groups=tuple(
            GroupWidth(
                group=group.group,
                layers=group.layers,
                width=group.width,
                new_width=group.new_width,
                excess=group.excess,
            )
            for group in plan.groups
        ),
        notes=plan.notes,
    )


def _proof(proof: Verification) -> ProofVerdict:
    models = []
    for entry in proof.entries:
        lead, low, high = (math.nan,) * 3 if entry.name == SLIM else proof.lead(entry.name)
        models.append(
            ProvenModel(
                name=entry.name,
                about=entry.about,
                params=entry.params,
                macs=entry.macs,
                score=_known(entry.mean),
                lead=_known(lead),
                lead_low=_known(low),
                lead_high=_known(high),
                standing=None if entry.name in (SLIM, *BESIDE) else proof.standing(entry.name),
            )
        )
    return ProofVerdict(
        score=proof.score,
        steps=proof.steps,
        seeds=proof.seeds,
        models=tuple(models),
        verdict=proof.verdict,
        longer_gain=None if proof.longer is None else _known(proof.longer.gain(proof.score)),
        length=proof.length,
    )


def _ladder(ladder: LadderProof) -> LadderVerdict:
    sizes = []
    for rung in ladder.rungs:
        slim = rung.proof.entry(SLIM)
        sizes.append(
            LadderSize(axis=rung.axis, share=rung.share, params=slim.params, macs=slim.macs, score=_known(slim.mean))
        )
    return LadderVerdict(verdicts=ladder.verdicts, sizes=tuple(sizes))


def _known(value: float) -> float | None:
    """Return a number as JSON has it; None for NaN and for the infinite bounds of a single seed."""
    return float(value) if math.isfinite(value) else None
