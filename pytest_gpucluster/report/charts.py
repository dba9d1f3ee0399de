"""Charts as inline SVG: numbers in, markup out; no text of a machine goes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.verdict.findings import Measurement

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT = 220.0, 26.0


def bar(measurement: Measurement) -> Markup | None:
    """The value and its interval on a line, with floor, expectation and ceiling marked.

    ``None`` where there is nothing to compare with.
    """
    from markupsafe import Markup

    marks = {
        "floor": measurement.floor,
        "expected": measurement.expected,
        "ceiling": measurement.ceiling,
    }
    known = {name: value for name, value in marks.items() if value is not None}
    if not known:
        return None
    top = max(measurement.high or 0.0, measurement.value, *known.values()) * 1.05 or 1.0

    def x(value: float) -> float:
        return round(max(0.0, value) / top * WIDTH, 1)

    low = measurement.low if measurement.low is not None else measurement.value
    high = measurement.high if measurement.high is not None else measurement.value
    label = ", ".join(
        f"{name} {value:g}" for name, value in {"measured": measurement.value, **known}.items()
    )
    parts = [
        f'<svg class="bar" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{label}">',
        f'<rect class="track" x="0" y="9" width="{WIDTH:g}" height="8"/>',
        f'<rect class="value" x="0" y="9" width="{x(measurement.value)}" height="8"/>',
        f'<line class="interval" x1="{x(low)}" x2="{x(high)}" y1="13" y2="13"/>',
        *(
            f'<line class="{name}" x1="{x(value)}" x2="{x(value)}" y1="2" y2="24"/>'
            for name, value in known.items()
        ),
        "</svg>",
    ]
    return Markup("".join(parts))  # noqa: S704 - built from numbers and fixed words only
