"""The figures of a benchmark that has ended."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from math import ceil, floor, log10
from typing import Any

from giornata.client import Client
from giornata.domain.billing.money import format_usd
from giornata.domain.generation.picture import PictureState
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job, PictureCounts

BINS = 12
BAR_CHARS = 40
WINDOW_S = 10.0
SHOWN_FAILURES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBenchPicture:
    """A picture of a benchmark that could not be drawn."""

    order: str
    number: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """The figures: pictures by their ends, wall time, money, and seconds per picture as (from, to, pictures): of the
    installation, by the wall, and of a node, by its leases."""

    pictures: int
    failed: int
    canceled: int
    blocked: int
    seconds: float
    cost_micro_usd: int
    histogram: tuple[tuple[float, float, int], ...]
    node_seconds_per_picture: float | None = None
    node_histogram: tuple[tuple[float, float, int], ...] = ()
    failures: tuple[FailedBenchPicture, ...]

    @property
    def pictures_per_s(self) -> float:
        """Pictures of all nodes together for each second of wall time."""
        return self.pictures / self.seconds if self.seconds else 0.0

    @property
    def pictures_per_usd(self) -> float | None:
        """None where the nodes have no price."""
        return self.pictures / (self.cost_micro_usd / 1e6) if self.cost_micro_usd else None

    def as_json(self) -> dict[str, Any]:
        """Return all figures as one object."""
        return asdict(self) | {"pictures_per_s": self.pictures_per_s, "pictures_per_usd": self.pictures_per_usd}

    def lines(self) -> list[str]:
        """Return the figures for people."""
        price = "not known: the nodes have no price"
        if self.pictures_per_usd is not None:
            price = f"{format_usd(self.cost_micro_usd)}, {self.pictures_per_usd:,.0f} pictures per dollar"
        odd = [("canceled", self.canceled), ("blocked", self.blocked)]
        rows = [
            ("pictures", f"{self.pictures:,}"),
            ("failed", f"{self.failed:,}"),
            *((name, f"{number:,}") for name, number in odd if number),
            ("wall time", f"{self.seconds:,.1f} s, {self.pictures_per_s:,.2f} pictures/s"),
            ("cost", price),
        ]
        if self.node_seconds_per_picture is not None:
            rows.append(("node time", f"{self.node_seconds_per_picture:,.3g} s per picture"))
        found = [f"{name:<12}{value}" for name, value in rows]
        found += _chart(f"wall seconds per picture, in windows of {WINDOW_S:g} s", self.histogram)
        found += _chart("node seconds per picture, by lease", self.node_histogram)
        return found + [f"failed: {each.order} picture {each.number}: {each.error}" for each in self.failures]


def _chart(title: str, histogram: Sequence[tuple[float, float, int]]) -> Iterator[str]:
    if histogram:
        yield f"{title}, and the pictures drawn at that pace:"
    most = max((pictures for _, _, pictures in histogram), default=0)
    for start_s, end_s, pictures in histogram:
        bar = "█" * ceil(BAR_CHARS * pictures / most)
        yield f"{start_s:>9.4g} – {end_s:<9.4g}{pictures:>9,}  {bar}".rstrip()


def report_of(client: Client, order_ids: Sequence[str]) -> BenchReport:
    """Return the figures of orders that have ended."""
    jobs = [client.get_job(order_id) for order_id in order_ids]
    counts = [job.pictures or PictureCounts() for job in jobs]
    ends = [job.ended_at for job in jobs if job.ended_at is not None]
    begins_at = min(job.created_at for job in jobs)
    wall_s = (max(ends) - begins_at).total_seconds() if ends else 0.0
    paces = [(each.node_s, each.pictures) for job in jobs for each in job.picture_paces]
    return BenchReport(
        pictures=sum(each.succeeded for each in counts),
        failed=sum(each.failed for each in counts),
        canceled=sum(each.canceled for each in counts),
        blocked=sum(int(job.result.get("blocked", 0)) for job in jobs),
        seconds=wall_s,
        cost_micro_usd=sum(job.cost_micro_usd for job in jobs),
        histogram=histogram_of(seconds_per_picture(_drawn(client, jobs), begins_at=begins_at)),
        node_seconds_per_picture=mean_of(paces),
        node_histogram=histogram_of(paces),
        failures=tuple(islice(_failures(client, jobs), SHOWN_FAILURES)),
    )


def _failures(client: Client, jobs: Iterable[Job]) -> Iterable[FailedBenchPicture]:
    for job in jobs:
        if job.pictures is None or not job.pictures.failed:
            continue
        for picture in client.pictures(job.id):
            if picture.state is PictureState.FAILED:
                yield FailedBenchPicture(order=job.id, number=picture.number, error=picture.error)


def _drawn(client: Client, jobs: Iterable[Job]) -> Iterator[tuple[datetime, int]]:
    """Yield how many pictures more each event of the orders tells of."""
    for job in jobs:
        before = 0
        for event in client.events(job.id):
            if event.type == EventType.PICTURES_READY:
                succeeded = int(event.data.get("succeeded", before))
                yield event.at, succeeded - before
                before = succeeded


def seconds_per_picture(drawn: Iterable[tuple[datetime, int]], *, begins_at: datetime) -> list[tuple[float, int]]:
    """Return wall seconds per picture and pictures of each window of `WINDOW_S`; a window in which nothing was told
    goes on until something is."""
    found = []
    since, last, pictures = begins_at, begins_at, 0
    for at, more in sorted(drawn):
        last, pictures = at, pictures + more
        if pictures and (at - since).total_seconds() >= WINDOW_S:
            found.append(((at - since).total_seconds() / pictures, pictures))
            since, pictures = at, 0
    if pictures and last > since:
        found.append(((last - since).total_seconds() / pictures, pictures))
    return found


def mean_of(measured: Sequence[tuple[float, int]]) -> float | None:
    """Return the mean seconds of a picture; None without any."""
    pictures = sum(count for _, count in measured)
    return sum(seconds * count for seconds, count in measured) / pictures if pictures else None


def histogram_of(measured: Sequence[tuple[float, int]]) -> tuple[tuple[float, float, int], ...]:
    """Return at most `BINS` bins of round width with their pictures, from the first to the last that has any."""
    if not measured:
        return ()
    least, most = min(each for each, _ in measured), max(each for each, _ in measured)
    width = _round_width((most - least) / (BINS - 1) or most / 10 or 1.0)
    first = floor(least / width)
    bins = [0] * (floor(most / width) - first + 1)
    for seconds, pictures in measured:
        bins[floor(seconds / width) - first] += pictures
    return tuple(
        ((first + place) * width, (first + place + 1) * width, pictures) for place, pictures in enumerate(bins)
    )


def _round_width(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10 … times a power of ten that is not below `least`."""
    power = 10.0 ** floor(log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))
