"""The picture of tuner_steps.py: goodput as bars, and the tuned batch over the last turn. Drawn by a headless Chromium."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from chromium import open_page

WIDTH, HEIGHT = 900, 340
TOP, BASE = 70, 290
BARS, CURVES = (50, 400), (480, 870)
GREY, TEAL, BROWN, LIGHT = "#8b979e", "#0b6e75", "#9a5b13", "#dfe5e8"
Curve = Sequence[tuple[float, int, float, float, float]]


def svg(rates: dict[str, float], curve: Curve, goals: tuple[float, float]) -> str:
    """Return the drawing; `goals` are the seconds to the first token and between tokens."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13" fill="#182024">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(BARS[0], 28, "Requests a second within the goals", bold=True),
        _text(
            BARS[0], 48, f"first token {goals[0]:.1f} s, {1e3 * goals[1]:.0f} ms between tokens; 1, 32, 2 clients", GREY
        ),
    ]
    most = max(rates.values()) or 1.0
    step = (BARS[1] - BARS[0]) / len(rates)
    for index, (name, rate) in enumerate(rates.items()):
        left, height = BARS[0] + index * step, (BASE - TOP - 20) * rate / most
        colour = TEAL if index == len(rates) - 1 else GREY
        parts += [
            f'<rect x="{left + 6:.1f}" y="{BASE - height:.1f}" width="{step - 12:.1f}" height="{height:.1f}" rx="2" fill="{colour}"/>',
            _text(left + step / 2, BASE - height - 6, f"{rate:.2f}", middle=True),
            _text(left + step / 2, BASE + 20, name, middle=True),
        ]
    parts += [_text(BARS[0], BASE + 40, "max_num_seqs", GREY), *_curves(curve), "</svg>"]
    return "\n".join(parts)


def _curves(curve: Curve) -> list[str]:
    end_s = curve[-1][0] or 1.0
    top = max(40.0, *(row[3] for row in curve))

    def across(seconds: float) -> float:
        return CURVES[0] + (CURVES[1] - CURVES[0]) * seconds / end_s

    def up(value: float) -> float:
        return BASE - (BASE - TOP) * min(value, top) / top

    def line(column: int, colour: str, dash: str = "") -> str:
        points = " ".join(f"{across(row[0]):.1f},{up(row[column]):.1f}" for row in curve)
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'

    return [
        _text(CURVES[0], 28, "One turn of the tuned instance", bold=True),
        _text(CURVES[0], 48, "max_num_seqs", TEAL),
        _text(CURVES[0] + 110, 48, "running", BROWN),
        _text(CURVES[0] + 180, 48, "clients", GREY),
        *(
            f'<line x1="{CURVES[0]}" x2="{CURVES[1]}" y1="{up(value):.1f}" y2="{up(value):.1f}" stroke="{LIGHT}"/>'
            for value in (0, 8, 16, 32)
        ),
        *(_text(CURVES[0] - 8, up(value) + 4, str(value), GREY, end=True) for value in (0, 8, 16, 32)),
        line(1, GREY, "4 3"),
        line(2, BROWN),
        line(4, TEAL),
        _text(CURVES[0], BASE + 20, "0 s", GREY),
        _text(CURVES[1], BASE + 20, f"{end_s:.0f} s", GREY, end=True),
    ]


def _text(x: float, y: float, words: str, colour: str = "#182024", **how: bool) -> str:
    anchor = "middle" if how.get("middle") else "end" if how.get("end") else "start"
    weight = "600" if how.get("bold") else "400"
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'


async def draw(rates: dict[str, float], curve: Curve, goals: tuple[float, float], png: Path) -> None:
    """Write the drawing to `png`."""
    with tempfile.TemporaryDirectory() as place:
        page_file = Path(place) / "plot.html"
        page_file.write_text(f"<!DOCTYPE html><body style='margin:0'>{svg(rates, curve, goals)}</body>")
        async with open_page(page_file.as_uri()) as page:
            await page.size(WIDTH, HEIGHT)
            await page.picture(png)
    print(f"drawn to {png}")
