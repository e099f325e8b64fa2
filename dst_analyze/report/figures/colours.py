"""The report's colours: dark blue is kept, yellow is given up.

Cividis rises evenly in lightness, so that it works in greyscale and with colour blindness. Text on it is black or
white, whichever has a contrast of at least 4.5 to 1.
"""

from __future__ import annotations

import math
from functools import lru_cache

from matplotlib import colormaps
from matplotlib.colors import to_hex

KEPT_MAP = "cividis_r"  # of a remaining share: 1 is dark
GIVEN_MAP = "cividis"  # of redundancy: high is light
UNKNOWN = "#b8bdc4"
_STEPS = 64  # shades; more would only make the page longer


@lru_cache(maxsize=512)
def shade(value: float, *, given: bool) -> str:
    """Return the colour of a share from 0 to 1; grey for NaN."""
    if math.isnan(value):
        return UNKNOWN
    step = round(min(max(value, 0.0), 1.0) * (_STEPS - 1)) / (_STEPS - 1)
    return to_hex(colormaps[GIVEN_MAP if given else KEPT_MAP](step))


@lru_cache(maxsize=512)
def ink_on(colour: str) -> str:
    """Return black or white, whichever has more contrast on this colour."""
    return "#000000" if luminance(colour) > 0.179 else "#ffffff"


def luminance(colour: str) -> float:
    """Return the relative luminance, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
