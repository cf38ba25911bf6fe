"""The life of a job as patches of plaster: one patch for each attempt, on the wall of its machine's color.

Everything is geometry in the units of the drawing, 1000 wide. The outline of a patch is a function of its machine and
of the number of the attempt, so that a page that is loaded again draws the same one.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from giornata.control.jobs.reading.job_life import JobLife

WIDTH, TOP, HEIGHT = 1000.0, 14.0, 60.0
COLORS = 6
LEAST_WIDTH = 6.0
EDGE_STEPS = 12
ROUGH = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """One attempt. `ending` is the reason of an interruption; empty while it runs, and after a success."""

    number: int
    machine: str
    began_at: datetime
    ended_at: datetime | None
    ending: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One attempt as it is drawn. `color` is the number of its machine's pigment."""

    span: TimelineSpan
    outline: str
    x: float
    width: float
    color: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineMark:
    """A checkpoint, a validation or an audit as it is drawn. `sort` is its class in the style sheet."""

    sort: str
    words: str
    x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatBand:
    """A time in which heartbeats of an attempt came."""

    attempt: int
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The drawing, and the machines by pigment."""

    patches: Sequence[Patch]
    beats: Sequence[BeatBand]
    marks: Sequence[TimelineMark]
    machines: Sequence[tuple[str, int]]
    began_at: datetime
    until: datetime
    interruptions: int


def draw_timeline(
    spans: Sequence[TimelineSpan],
    life: JobLife,
    *,
    began_at: datetime,
    until: datetime,
) -> Timeline:
    """Return the drawing of the time from `began_at` to `until`."""
    whole = max(until - began_at, timedelta(seconds=1))

    def x_of(then: datetime) -> float:
        return round(min(1.0, max(0.0, (then - began_at) / whole)) * WIDTH, 1)

    names = list(dict.fromkeys(span.machine for span in spans))
    color_of = {name: index % COLORS for index, name in enumerate(names)}
    patches = []
    for span in spans:
        x = min(x_of(span.began_at), WIDTH - LEAST_WIDTH)
        width = max(LEAST_WIDTH, round(x_of(span.ended_at or until) - x, 1))
        outline = _outline(f"{span.machine} {span.number}", x, width)
        patches.append(Patch(span=span, outline=outline, x=x, width=width, color=color_of[span.machine]))
    beats = [
        BeatBand(attempt=span.number, x=x_of(begin), width=round(x_of(end) - x_of(begin), 1))
        for span in spans
        for begin, end in _beating(span, life, until)
    ]
    return Timeline(
        patches=patches,
        beats=beats,
        marks=_marks(life, x_of),
        machines=[(name, color_of[name]) for name in names],
        began_at=began_at,
        until=until,
        interruptions=sum(bool(span.ending) for span in spans),
    )


def _beating(span: TimelineSpan, life: JobLife, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the times in which heartbeats of the attempt came: all of it, without its silent times."""
    begin, end = span.began_at, span.ended_at or until
    for silent in life.silent:
        if silent.attempt == span.number and begin <= silent.since <= end:
            yield begin, silent.since
            begin = end if silent.until is None else min(end, silent.until)
    if begin < end:
        yield begin, end


def _marks(life: JobLife, x_of: Callable[[datetime], float]) -> list[TimelineMark]:
    said = [("checkpoint", f"Checkpoint at step {step}", at) for step, at in life.checkpoints]
    said += [("validation", f"Validation {name}", at) for name, at in life.validations]
    for each in life.audits:
        said.append(("audit", f"Audit of steps {each.from_step} to {each.to_step}: {each.state}", each.at))
    return [TimelineMark(sort=sort, words=words, x=x_of(at)) for sort, words, at in said]


def _outline(seed: str, x: float, width: float) -> str:
    """Return the path of a patch with a trowel's edge: straight in time, rough above and below."""
    rough = hashlib.sha256(seed.encode()).digest()
    depths = [byte / 255 * ROUGH for byte in rough]
    stops = [x + width * step / EDGE_STEPS for step in range(EDGE_STEPS + 1)]
    above = [(each, TOP + depths[index]) for index, each in enumerate(stops)]
    below = [(each, TOP + HEIGHT - depths[index + EDGE_STEPS + 1]) for index, each in enumerate(stops)]
    points = [*above, *reversed(below)]
    return "M" + " L".join(f"{round(px, 1)} {round(py, 1)}" for px, py in points) + " Z"
