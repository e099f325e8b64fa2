"""summary.md: what a run found, on one screen of Markdown, as a comment to a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from dst_analyze.ranking.formats.serialize import escaped
from dst_analyze.report.summary import Summary
from dst_analyze.report.verdict_file import GroupWidth, LayerVerdict, VerdictFile
from dst_analyze.text import elide, escape_control, short

_LAYERS, _GROUPS, _NAME = 5, 8, 80


def markdown_summary(found: VerdictFile, summary: Summary, again: str) -> str:
    """Return the summary of a run; ``again`` is the command that makes the run once more, if any."""
    return "\n".join(_lines(found, summary, again)) + "\n"


def _lines(found: VerdictFile, summary: Summary, again: str) -> Iterator[str]:
    yield f"### {_text(found.model.name)}: {_text(found.answer)}"
    yield ""
    for warning in found.warnings:
        yield f"> **Note.** {_text(warning)}"
        yield ">"
    if found.warnings:
        yield ""
    yield from (_text(line) for line in summary.saving)
    if summary.too_wide:
        yield _text(f"Too wide: {summary.too_wide}.")
    yield ""
    yield "| layer | label | weights | keeps | spare | rank |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    yield from map(_layer_row, found.layers[:_LAYERS])
    if len(found.layers) > _LAYERS:
        yield ""
        yield f"{len(found.layers) - _LAYERS} more layers are in verdict.json."
    changed = [] if found.suggestion is None else [g for g in found.suggestion.groups if g.new_width < g.width]
    if changed:
        yield ""
        yield f"<details><summary>Suggested widths of {len(changed)} groups of channels</summary>"
        yield ""
        yield "| group | width |"
        yield "| --- | ---: |"
        yield from map(_group_row, changed[:_GROUPS])
        if len(changed) > _GROUPS:
            yield f"| and {len(changed) - _GROUPS} more | |"
        yield ""
        yield "</details>"
    yield ""
    yield f"How sure: {_text(' '.join(summary.sure[:1]))}"
    yield ""
    command = f": `{escape_control(again).replace('`', '')}`" if again else ""
    yield f"Made by dst-analyze {found.version}{command}"


def _layer_row(layer: LayerVerdict) -> str:
    cells = (
        _text(elide(layer.layer, _NAME)),
        layer.label,
        short(layer.params),
        "–" if layer.remaining is None else f"{layer.remaining:.0%}",
        "–" if layer.spare is None else f"{layer.spare:.0%}",
        "–" if layer.rank is None else f"{layer.rank:g}",
    )
    return f"| {' | '.join(cells)} |"


def _group_row(group: GroupWidth) -> str:
    return f"| {_text(elide(group.group, _NAME))} | {group.width} → {group.new_width} |"


def _text(words: str) -> str:
    return escaped(escape_control(words))
