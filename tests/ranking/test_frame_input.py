"""Frames and CSV files from elsewhere: what is read, and the errors that name the bad row."""

import numpy as np
import pytest
from ratio_frames import frame_of

from dst_analyze import rank_layers
from dst_analyze.errors import DataError
from dst_analyze.ranking.input.frame_input import read_frame

GOOD = frame_of({"a": 0.5, "b": 0.7}, seeds=1, params=10)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (GOOD.drop(columns="remaining"), "no column remaining"),
        (GOOD.drop(columns=["layer", "alpha"]), "no column layer and no alpha"),
        (GOOD.iloc[:0], "no rows"),
        (GOOD.assign(remaining=[0.5, 0.5, 1.2, 0.5, 0.5, 0.5]), "row 2 .layer a, alpha 0.0001.: remaining is 1.2"),
        (GOOD.assign(remaining=[0.5, -0.1, 1.2, 0.5, 0.5, 0.5]), "row 1 .*remaining is -0.1, not a share"),
        (GOOD.assign(remaining=[0.5, 0.5, 0.5, np.nan, 0.5, 0.5]), "row 3 .*remaining is missing"),
        (GOOD.assign(remaining=[0.5, 0.5, 0.5, "lots", 0.5, 0.5]), "row 3 .*'lots', not a number"),
        (GOOD.assign(alpha=[np.inf, *[1e-3] * 5]), "row 0 .*not a positive number"),
        (GOOD.assign(alpha=[0, *[1e-3] * 5]), "row 0 .*not a positive number"),
        (GOOD.assign(alpha=1e-3), "row 2 .*already given, in row 0"),
        (GOOD.assign(seed=0.5), "row 0 .*not a whole number"),
        (GOOD.assign(layer=["a", None, *"abab"]), "row 1 .*no name"),
        (GOOD.assign(params=[10, 10, 10, 10, 11, 10]), "row 4 .*params is 11.0, but 10.0"),
        (GOOD.assign(params=[10, 10, 10, np.nan, 10, 10]), "row 3 .*params is missing"),
        (GOOD.assign(null=2.0), "row 0 .*null is 2.0"),
        (GOOD.assign(control="maybe"), "row 0 .*neither true nor false"),
        (GOOD.assign(resets=-1), "row 0 .*resets is -1"),
        (GOOD.set_axis(["layer", "alpha", "seed", "remaining", "seed"], axis=1), "'seed' occurs twice"),
        ([1, 2, 3], "not from list"),
    ],
)
def test_bad_frames_name_the_row(frame, said):
    with pytest.raises(DataError, match=said):
        rank_layers(frame)


def test_a_csv_file_from_elsewhere(tmp_path):
    path = tmp_path / "ratios.csv"
    frame = frame_of(dict(zip(["=1+1", "NA", "two\nlines", "0"], [0.9, 0.6, 0.3, 0.1], strict=True)), params=10)
    path.write_text("\ufeff" + frame.assign(macs="", control="false").to_csv(index=False))
    assert list(rank_layers(read_frame(path)).table["layer"]) == ["0", "two\nlines", "NA", "=1+1"]
    path.write_text("layer,alpha,remaining\na,1,0.9\nb,1,0.2\n")  # these columns are enough
    assert list(rank_layers(read_frame(path)).table["layer"]) == ["b", "a"]
    for text, said in (
        ("layer,alpha,remaining\na,1,2\n", "line 2 .*remaining is 2"),
        ("layer,alpha,remaining\na,1\n", "line 2 has 2 values"),
        ("layer,alpha,remaining\na,1,\n", "line 2 .*missing"),
        ("", "no column layer"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=said) as caught:
            read_frame(path)
        assert caught.value.place == str(path)
    path.write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(DataError, match="cannot be read"):
        read_frame(path)
