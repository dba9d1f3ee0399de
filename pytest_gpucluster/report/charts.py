"""Charts as inline SVG: numbers in, markup out; no text of a machine goes in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpucluster.verdict.findings import Measurement

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT = 220.0, 26.0
MARKS = ("floor", "expected", "ceiling")


def bar(measurement: Measurement) -> Markup | None:
    """The value and its interval on a line, with floor, expectation and ceiling marked.

    ``None`` where there is nothing to compare with.
    """
    known = {name: value for name in MARKS if (value := getattr(measurement, name)) is not None}
    value = measurement.value
    low = measurement.low if measurement.low is not None else value
    high = measurement.high if measurement.high is not None else value
    top = 1.05 * max(high, value, *known.values()) if known else 0.0
    if not (top > 0 and all(map(math.isfinite, (value, low, high, top)))):
        return None

    def x(number: float) -> float:
        return round(max(0.0, number) / top * WIDTH, 1)

    label = ", ".join(f"{name} {number:g}" for name, number in {"measured": value, **known}.items())
    below = " low" if "floor" in known and value < known["floor"] else ""
    return _svg(
        label,
        f'<rect class="track" x="0" y="8" width="{WIDTH:g}" height="10" rx="2"/>',
        f'<rect class="value{below}" x="0" y="8" width="{x(value)}" height="10" rx="2"/>',
        f'<line class="interval" x1="{x(low)}" x2="{x(high)}" y1="13" y2="13"/>',
        *(_mark(name, x(number)) for name, number in known.items()),
    )


def legend(name: str) -> Markup:
    """A mark as it is drawn in the bars, for the text that explains them."""
    from markupsafe import Markup

    line = f'<line class="{name}" x1="5" x2="5" y1="1" y2="25"/>' if name in MARKS else ""
    block = f'<rect class="{name}" x="0" y="8" width="10" height="10" rx="2"/>' if not line else ""
    start = '<svg class="bar key" viewBox="0 0 10 26" aria-hidden="true">'
    return Markup(f"{start}{line}{block}</svg>")  # noqa: S704 - built from fixed words only


def _mark(name: str, place: float) -> str:
    return f'<line class="{name}" x1="{place}" x2="{place}" y1="1" y2="25"/>'


def _svg(label: str, *shapes: str) -> Markup:
    from markupsafe import Markup

    start = f'<svg class="bar" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{label}">'
    return Markup(f"{start}{''.join(shapes)}</svg>")  # noqa: S704 - numbers and fixed words only
