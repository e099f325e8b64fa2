"""A ranking in a notebook: static HTML, every name escaped, no script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from dst_analyze.ranking.formats import percent, place, places, signed
from dst_analyze.sweep.record import alpha_label
from dst_analyze.text import elide, short, visible

if TYPE_CHECKING:
    from dst_analyze.ranking.result import Ranking

_MOST = 200  # rows that a notebook shows

_PAGE = """<div style="overflow-x: auto">
<p><strong>Verdict: {{ ranking.verdict }}.</strong></p>
<table>
<thead><tr>{% for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row" style="text-align: left; font-family: monospace; unicode-bidi: isolate">{{ row.layer | name }}</th>\
<td>{{ row.label }}</td><td>{{ row.rank | place }}</td><td>{{ places(row.rank_low, row.rank_high) }}</td>\
<td>{{ row.redundancy | signed }}</td><td>{{ row.beyond_null | signed }}</td>\
{% for ratio in ratios[row.position] %}<td>{{ ratio | percent }}</td>{% endfor %}\
<td>{{ row.params_given_up | short }}</td><td>{{ row.macs_given_up | short }}</td>\
<td style="text-align: left">{{ row.reason }}</td></tr>
{% endfor %}
</tbody>
</table>
{% if more %}<p>{{ more }} more layers</p>{% endif %}
<ul>
{% for note in ranking.notes %}
<li>{{ note }}</li>
{% endfor %}
</ul>
</div>
"""


def as_html(ranking: Ranking) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        place=place, signed=signed, percent=percent, short=short, name=lambda text: elide(visible(text), 80)
    )
    remaining = ranking.remaining()
    heads = ["layer", "label", "rank", "95 % interval", "redundancy", "beyond null"]
    heads += [f"keeps % at {alpha_label(float(alpha))}" for alpha in remaining.columns]
    heads += ["weights given up", "MACs given up", "because"]
    rows = ranking.table.head(_MOST)
    return environment.from_string(_PAGE).render(
        ranking=ranking,
        heads=heads,
        rows=list(rows.itertuples(index=False)),
        ratios=remaining.to_numpy(),
        places=places,
        more=len(ranking.table) - len(rows),
    )
