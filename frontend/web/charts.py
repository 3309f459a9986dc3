"""Charts, drawn on the server as SVG: classes say what is what, and the style sheet how it looks.

Bars stretch with the page; texts stand beside the picture, as HTML, so that they stay readable on a phone.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from markupsafe import Markup, escape

#: The picture's own units, and how many colours there are.
WIDTH, HEIGHT, COLOURS = 1000.0, 200.0, 8


@dataclass(frozen=True)
class Chart:
    """A picture, the value at its top, the labels below it from left to right, and what it says in words."""

    svg: Markup
    top: str
    labels: tuple[str, ...]
    words: str


def stacked_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str, line: float | None = None,
    cumulative: bool = False,
) -> Chart:
    """A bar for each label, stacked of one value of each series, at least 0; where a series ends early, of nothing.
    `cumulative` bars are of all values so far. `line` is drawn across, at its height."""
    ended = max(map(len, series.values()), default=0)
    values = {name: [*(_sums(numbers) if cumulative else numbers), *[0.0] * (len(labels) - len(numbers))]
              for name, numbers in series.items()}
    totals = [sum(numbers[place] for numbers in values.values()) for place in range(len(labels))]
    top = _round_up(max([*totals, line or 0.0, 0.0]))
    step = WIDTH / max(len(labels), 1)
    drawn = [f'<line class="grid" x1="0" x2="{WIDTH:g}" y1="{HEIGHT * part:g}" y2="{HEIGHT * part:g}"/>'
             for part in (0, 0.25, 0.5, 0.75)]
    for place, label in enumerate(labels):
        bars, y = [], HEIGHT
        for number, (_, numbers) in enumerate(values.items()):
            height = HEIGHT * numbers[place] / top
            if height:
                y -= height
                bars.append(f'<rect class="c{number % COLOURS}" x="{place * step + step * 0.12:.2f}" y="{y:.2f}" '
                            f'width="{step * 0.76:.2f}" height="{height:.2f}"/>')
        parts = "; ".join(f"{name} {amount(numbers[place])}" for name, numbers in values.items() if numbers[place])
        bars.append(f'<rect class="hit" x="{place * step:.2f}" y="0" width="{step:.2f}" height="{HEIGHT:g}"/>')
        if parts:
            drawn.append(f"<g><title>{escape(label)}: {escape(parts)}</title>{''.join(bars)}</g>")
    if line is not None:
        y = HEIGHT - HEIGHT * line / top
        drawn.append(f'<line class="limit" x1="0" x2="{WIDTH:g}" y1="{y:.2f}" y2="{y:.2f}"/>')
    said = amount(totals[ended - 1] if cumulative and ended else sum(totals))
    words = f"{said} {unit} from {labels[0]} to {labels[-1]}" if labels else f"no {unit}"
    svg = Markup(  # made of numbers and of escaped texts
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" aria-label="{escape(words)}">'
        f'{"".join(drawn)}</svg>')
    middle = labels[len(labels) // 2 : len(labels) // 2 + 1] if len(labels) > 4 else ()
    return Chart(svg, f"{amount(top)} {unit}", (*labels[:1], *middle, *labels[-1:]), words)


def meter(parts: Mapping[str, float], whole: float, words: str) -> Markup:
    """One bar of several parts of a whole; each part's name is its class."""
    drawn, x = [], 0.0
    for name, value in parts.items():
        width = WIDTH * value / whole if whole else 0.0
        drawn.append(f'<rect class="{escape(name)}" x="{x:.2f}" y="0" width="{width:.2f}" height="10"/>')
        x += width
    return Markup(
        f'<svg class="meter" viewBox="0 0 {WIDTH:g} 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(words)}">{"".join(drawn)}</svg>')


def amount(value: float) -> str:
    """A number as people read it: 1,234 or 0.25."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"


def _round_up(value: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** floor(log10(value))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value)


def _sums(numbers: Sequence[float]) -> list[float]:
    total, sums = 0.0, []
    for number in numbers:
        total += number
        sums.append(total)
    return sums
