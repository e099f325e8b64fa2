"""Plans to prove, and the scores of a proof."""

from dst_analyze.slimming.coupling import couple
from dst_analyze.slimming.density import GroupEvidence
from dst_analyze.slimming.plan import plan_widths
from dst_analyze.slimming.values import Limits


def plan_of(task, share=0.5):
    coupling = couple(task.traced)
    found = {group.name: GroupEvidence.equal(group.width, 0.5) for group in coupling.removable}
    return plan_widths(task.traced, coupling, found, limits=Limits(round_to=8), asked={"params": share})


def scores(found):
    return {entry.name: entry.scores for entry in found.entries}
