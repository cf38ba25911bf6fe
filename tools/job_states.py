"""Draws the states of a job as an SVG: `python -m tools.job_states` writes docs/images/job-states.svg.

Each state is a vertical line. Each row of the transition table is an arrow from its state to the next one.
"""

from pathlib import Path

from giornata.domain.jobs.job import TERMINAL, TRANSITIONS, JobState

FILE = Path(__file__).parents[1] / "docs" / "images" / "job-states.svg"
COLUMN_PX, ROW_PX, LEFT_PX, TOP_PX = 118, 24, 64, 48
BOX_PX = (92, 26)
INK, SOFT, PAPER = "#1b1f24", "#b6bec8", "#ffffff"
STATES = (JobState.PAUSED, JobState.QUEUED, JobState.RUNNING, *sorted(TERMINAL, key=list(JobState).index))
SUBMIT = ("submit", None, JobState.QUEUED)


def rows() -> list[tuple[str, JobState | None, JobState]]:
    """Return (event, state before, state after) in the order of the table; a submitted job has no state before."""
    return [SUBMIT, *((str(event), source, target) for (source, event), target in TRANSITIONS.items())]


def column(state: JobState) -> int:
    return LEFT_PX + COLUMN_PX * STATES.index(state)


def box(state: JobState, bottom: int) -> str:
    """Return the line of a state with its name above; states in which a job stays have a thick frame."""
    x, (width, height) = column(state), BOX_PX
    frame = (
        f'<rect x="{x - width // 2}" y="10" width="{width}" height="{height}" rx="5" fill="{PAPER}" stroke="{INK}"'
    )
    return (
        f'<line x1="{x}" y1="{10 + height}" x2="{x}" y2="{bottom}" stroke="{SOFT}"/>'
        f'{frame} stroke-width="{3 if state in TERMINAL else 1}"/><text x="{x}" y="27">{state}</text>'
    )


def arrow(number: int, event: str, source: JobState | None, target: JobState) -> str:
    y, end = TOP_PX + ROW_PX * (number + 1), column(target)
    if source is target:
        loop = f'<path d="M{end} {y - 6} h34 v10 h-30" fill="none" stroke="{INK}" marker-end="url(#tip)"/>'
        return f'{loop}<text x="{end + 40}" y="{y + 3}" class="beside">{event}</text>'
    start = column(source) if source else end - COLUMN_PX // 2
    side = 4 if end > start else -4
    line = f'<line x1="{start}" y1="{y}" x2="{end - side}" y2="{y}" stroke="{INK}" marker-end="url(#tip)"/>'
    begin = f'<circle cx="{start}" cy="{y}" r="3" fill="{INK}"/>'
    return f'{line}{begin}<text x="{start + 9 * side}" y="{y - 5}">{event}</text>'


def drawing() -> str:
    """Return the SVG, the same for the same table."""
    table = rows()
    width, height = column(STATES[-1]) + LEFT_PX, TOP_PX + ROW_PX * (len(table) + 1)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    words = "; ".join(f"{event}: {source or 'nothing'} to {target}" for event, source, target in table)
    marker = 'id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
    style = f"text {{ font: 12px sans-serif; fill: {INK}; text-anchor: middle }} .beside {{ text-anchor: start }}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>The states of a job</title><desc>{words}</desc>",
        f'<defs><marker {marker}><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
        f"<style>{style}</style>",
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        *(box(state, height - 8) for state in STATES),
        *(arrow(number, *row) for number, row in enumerate(table)),
        "</svg>\n",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    FILE.write_text(drawing(), encoding="utf-8")
