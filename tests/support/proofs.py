"""Plans to prove, and the scores of a proof."""

from dst_analyze import couple_channels
from dst_analyze.slimming.planning.density import GroupEvidence
from dst_analyze.slimming.planning.plan_types import Limits
from dst_analyze.slimming.planning.plan_widths import plan_widths


def plan_of(task, share=0.5):
    coupling = couple_channels(task.traced)
    found = {group.name: GroupEvidence.equal(group.width, 0.5) for group in coupling.removable}
    return plan_widths(task.traced, coupling, found, limits=Limits(round_to=8), asked={"params": share})


def scores(found):
    return {entry.name: entry.scores for entry in found.entries}
