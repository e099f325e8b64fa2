"""Rankings as text, Markdown, CSV and JSON, and read back."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ratio_frames import PATTERN, as_frame, frame_of, ratio_arrays
from run_folders import STRANGE_NAMES

from dst_analyze import Ranking, rank_layers
from dst_analyze.errors import DataError
from dst_analyze.ranking.verdict import Caveat, Verdict

HOSTILE = [
    *STRANGE_NAMES,
    "'=quoted",
    "'",
    "\x1b[31mred",
    "a|b`c`*d*",
    "\u202eevil",
    "x" * 500,
    "-1",
    "\r\n\t@sum",
    "  ",
]


text_names = st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=5, unique=True)


@settings(max_examples=40, deadline=None)
@given(ratio_arrays.filter(lambda r: r.shape[1] <= 5), text_names, st.booleans())
def test_csv_and_json_come_back_the_same(ratios, names, null):
    ratios = ratios[:, : len(names)]
    frame = as_frame(ratios, names[: ratios.shape[1]])
    frame["group"] = [name if i % 2 else "" for i, name in enumerate(frame["layer"])]
    frame["group"] = frame.groupby("layer")["group"].transform("first")
    if null:
        frame["null"] = 0.5
    ranking = rank_layers(frame, draws=20)
    for back in (Ranking.from_json(ranking.to_json()), Ranking.from_csv(ranking.to_csv())):
        assert back == ranking
        pd.testing.assert_frame_equal(back.table, ranking.table)
        assert back.text(80) == ranking.text(80)


def test_hostile_names_are_inert_everywhere():
    ranking = rank_layers(frame_of(dict(zip(HOSTILE, np.linspace(0.9, 0.1, len(HOSTILE)), strict=True)), resets=1))
    assert Ranking.from_csv(ranking.to_csv()) == ranking
    cells = [line.split(",")[0].strip('"') for line in ranking.to_csv().splitlines()[1:]]
    assert not [cell for cell in cells if cell[:1] in ("=", "@")]
    for text in (ranking.text(80), ranking.markdown()):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "<img" not in ranking.markdown()
    html = ranking._repr_html_()
    assert "<img" not in html
    assert "<script" not in html
    assert "&lt;img" in html
    assert "\x1b" not in html
    assert max(map(len, ranking.text(80).splitlines())) <= 80
    assert all(
        line.count(" | ") == ranking.markdown().splitlines()[0].count(" | ")
        for line in ranking.markdown().split("\n\n")[0].splitlines()
    )


def test_foreign_files_are_refused():
    for text in ("", "{}", "[]", "layer,alpha\na,1\n", '{"schema_version": 99, "table": {"columns": [], "rows": []}}'):
        with pytest.raises(DataError, match="not a ranking"):
            Ranking.from_json(text)
        with pytest.raises(DataError, match="not a ranking"):
            Ranking.from_csv(text)


def test_what_a_ranking_says_is_read_back_as_the_same_values():
    ranking = rank_layers(frame_of(PATTERN, alphas=(1e-4, 1e-3), seeds=1))
    assert ranking.caveats == (Caveat.TWO_TRIALS, Caveat.ONE_SEED, Caveat.COARSE)
    for back in (Ranking.from_json(ranking.to_json()), Ranking.from_csv(ranking.to_csv())):
        assert back.verdict is Verdict.WEAK
        assert back.caveats == ranking.caveats
        assert back.statistics.guesses == ranking.statistics.guesses
