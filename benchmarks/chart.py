"""Bars of steps a second beside the reference's, as an SVG that needs nothing to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from benchmarks.variants import VARIANTS

_LEFT, _WIDTH, _BAR, _GAP, _RIGHT = 250, 360, 20, 10, 170


def chart(places: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the ratios of every place whose speed was measured; a line across a bar is its budget.

    Args:
        places: what each place's parts have found, as in the report.
    """
    speeds = {place: parts["speed"] for place, parts in places.items() if "speed" in parts}
    most = max((said["ratio"] for speed in speeds.values() for said in speed.values()), default=1.0)
    scale, parts, y = _WIDTH / max(most, 1.0), list[str](), 10
    for place, speed in speeds.items():
        parts.append(_text(10, y + 15, place, weight="bold"))
        y += 28
        for key, said in speed.items():
            parts += _bar(y, key, said, scale, VARIANTS[key].budget if place == "servers" else None)
            y += _BAR + _GAP
        y += _GAP
    width, height = _LEFT + _WIDTH + _RIGHT, y
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    title = "Steps a second, as a part of those of a raw Celery chain"
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join(
        [
            f'{head} font-family="sans-serif" font-size="13">',
            f"<title>{title}</title>",
            background,
            *parts,
            "</svg>",
            "",
        ]
    )


def _bar(y: int, key: str, said: Mapping[str, Any], scale: float, budget: float | None) -> list[str]:
    length, middle = said["ratio"] * scale, y + _BAR - 5
    parts = [
        _text(10, middle, VARIANTS[key].label),
        f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR}" fill="{_colour(key)}"/>',
    ]
    beyond = length
    if budget is not None:
        at = _LEFT + budget * scale
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y - 3}" y2="{y + _BAR + 3}" stroke="#b30000" stroke-width="2"/>'
        )
        beyond = max(length, budget * scale)
    figures = f"{said['ratio']:.2f} ({said['steps_per_second']:,.0f} a second)"
    return [*parts, _text(_LEFT + beyond + 8, middle, figures)]


def _colour(key: str) -> str:
    return "#9aa0a6" if key == next(iter(VARIANTS)) else "#2b6cb0"


def _text(x: float, y: float, words: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{escape(words)}</text>'
