"""HTML tables for notebooks: static, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jinja2 import Environment, StrictUndefined

from dst_analyze.text import elide, escape_control

_MOST = 200  # rows that a notebook shows

_PAGE = """<div style="overflow-x: auto">
{% if lead %}<p><strong>{{ lead }}</strong></p>{% endif %}
<table>
<thead><tr>{% for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row" style="text-align: left; font-family: monospace; unicode-bidi: isolate">{{ row[0] | name }}</th>\
{% for cell in row[1:] %}<td{% if loop.revindex <= words %} style="text-align: left"{% endif %}>{{ cell }}</td>\
{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
{% if more %}<p>{{ more }} more</p>{% endif %}
<ul>
{% for note in notes %}
<li>{{ note }}</li>
{% endfor %}
</ul>
</div>
"""


def html_table(
    lead: str, heads: Sequence[str], rows: Sequence[Sequence[object]], notes: Iterable[str] = (), *, words: int = 0
) -> str:
    """Return a sentence, a table and notes as HTML; the last ``words`` columns are aligned as text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["name"] = lambda name: elide(name, 80)
    return environment.from_string(_PAGE).render(
        lead=escape_control(lead),
        heads=heads,
        rows=[[escape_control(str(cell)) for cell in row] for row in rows[:_MOST]],
        more=max(0, len(rows) - _MOST),
        notes=[escape_control(note) for note in notes],
        words=words,
    )
