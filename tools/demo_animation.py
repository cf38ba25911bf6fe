"""Draws the log of a demo as an animated SVG: `python -m tools.demo_animation demo.log OUT.svg`.

Each line appears when it appeared in the run. Waits longer than `LONGEST_WAIT_S` are shortened; the times in front
of the lines are those of the run. Where a viewer asks for reduced motion, all lines stand still.
"""

import re
import sys
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

LONGEST_WAIT_S = 1.2
LEAST_WAIT_S = 0.25
REST_S = 8.0
"""Seconds that the whole picture stands still before it begins anew."""
CHARACTER_PX, LINE_PX, MARGIN_PX, BAR_PX = 7.8, 20, 18, 34
PROGRESS = "  steps: "
"""Lines of progress, which are left out."""
VERDICTS = ("✓", "✗")
TIMED = re.compile(r"^\s*(\d+):(\d\d)\s+(.*)$")
COLORS = (("⚡", "#ff7b72"), ("✗", "#ff7b72"), ("✓", "#7ee787"), ("resumes", "#e3b341"))
PLAIN, QUIET, GROUND = "#e6edf3", "#8b949e", "#0d1117"


@dataclass(frozen=True, slots=True)
class TerminalLine:
    """`second`: when the line appeared in the run; None for lines without a time, which follow the one before."""

    second: int | None
    text: str


def read(log: str) -> list[TerminalLine]:
    """The lines with a time, but for those of progress, and the verdicts at the end. Tables are left out."""
    found = []
    for text in log.strip("\n").splitlines():
        timed = TIMED.match(text)
        if PROGRESS in text or not (timed or text.startswith(VERDICTS)):
            continue
        found.append(TerminalLine(int(timed[1]) * 60 + int(timed[2]) if timed else None, text.rstrip()))
    return found


def schedule(lines: list[TerminalLine]) -> list[float]:
    """Seconds after which each line appears in the animation, of the same length as `lines`."""
    at_s = [0.0] * min(1, len(lines))
    last_second = lines[0].second or 0 if lines else 0
    for _, line in pairwise(lines):
        waited_s = float(line.second - last_second) if line.second is not None else LEAST_WAIT_S
        last_second = line.second if line.second is not None else last_second
        at_s.append(at_s[-1] + min(max(waited_s, LEAST_WAIT_S), LONGEST_WAIT_S))
    return at_s


def draw(lines: list[TerminalLine]) -> str:
    """The SVG's text."""
    at_s = schedule(lines)
    whole_s = at_s[-1] + REST_S
    width = round(2 * MARGIN_PX + CHARACTER_PX * max(len(line.text) for line in lines))
    height = BAR_PX + MARGIN_PX + LINE_PX * len(lines)
    frames, rows = [], []
    for number, (line, start_s) in enumerate(zip(lines, at_s, strict=True)):
        hidden = 100 * start_s / whole_s
        frames.append(f"@keyframes l{number}{{0%,{hidden:.2f}%{{opacity:0}}{hidden + 0.01:.2f}%,100%{{opacity:1}}}}")
        y = BAR_PX + LINE_PX * (number + 0.8)
        style = f"animation:l{number} {whole_s:.1f}s infinite"
        rows.append(
            f'<text x="{MARGIN_PX}" y="{y:.0f}" fill="{_color(line.text)}" style="{style}">{escape(line.text)}</text>'
        )
    style = "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}"
    still = "@media (prefers-reduced-motion:reduce){text{animation:none!important}}"
    dots = "".join(
        f'<circle cx="{20 + 18 * i}" cy="18" r="6" fill="{c}"/>'
        for i, c in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    )
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{style}{''.join(frames)}{still}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>{dots}',
        *rows,
        "</svg>\n",
    ))  # fmt: skip


def _color(text: str) -> str:
    return next((color for mark, color in COLORS if mark in text), PLAIN if TIMED.match(text) else QUIET)


if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).write_text(draw(read(Path(source).read_text(encoding="utf-8"))), encoding="utf-8")
