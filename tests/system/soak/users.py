"""Users: they submit, cancel, retry, read, follow and download, through the same bad network as the nodes."""

import random
import secrets
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from tests.system.soak import installation, sims
from tests.system.soak.installation import SoakInstallation

from giornata.client import Client
from giornata.domain.errors import BlobMismatch, GiornataError, IllegalTransition, Unavailable
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.protocol.jobs import Job

T = TypeVar("T")
MOST_OPEN = 40
STEPS = (20, 40)
CADENCE = 10
DEADLINES_S = (5, 20, 3600)
PATIENCE_S = 150.0


def counted(steps: int, salt: str) -> bytes:
    """The result of a job that neither missed a number nor counted one twice."""
    total = 0
    for step in range(1, steps + 1):
        total = (total * 31 + step) % 2**61
    return f"{steps} {total} {salt}\n".encode()


@dataclass(slots=True)
class Book:
    """What all users together have asked for and were told."""

    asked: set[str] = field(default_factory=set)  # jobs that were acknowledged
    open: set[str] = field(default_factory=set)
    canceled: set[str] = field(default_factory=set)  # somebody asked for it
    surely_canceled: set[str] = field(default_factory=set)  # ... and was told that it is so
    ended: dict[str, JobState] = field(default_factory=dict)  # as somebody was told; never changes again
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, job_id: str, request: Callable[[], Job]) -> None:
        """Send a request about a job and note what the server says.

        A reply may overtake another: only an end that somebody knew of before this request was sent contradicts it.
        """
        known = self.ended.get(job_id)
        job = request()
        if known is not None and job.state is not known:
            self.violations.append(f"{job_id} was {known} and is {job.state}")
        self.note(job)

    def note(self, job: Job) -> None:
        """What the server says of a job."""
        with self.guard:
            self.asked.add(job.id)
            if job.state not in TERMINAL:
                if job.id not in self.ended:
                    self.open.add(job.id)
                return
            self.open.discard(job.id)
            if self.ended.setdefault(job.id, job.state) is not job.state:
                self.violations.append(f"{job.id} was {self.ended[job.id]} and is {job.state}")

    def some(self, rng: random.Random, chosen: set[str]) -> str | None:
        with self.guard:
            return rng.choice(sorted(chosen)) if chosen else None


class SoakUser:
    """One person, who does something every `every_s` on average."""

    def __init__(self, installation: SoakInstallation, book: Book, number: int, *, every_s: float, seed: int) -> None:
        self._installation, self._book, self._every_s = installation, book, every_s
        self._rng = random.Random(f"user {seed} {number}")
        server = installation.servers[number % 2]
        self._client = Client(server.control.url, installation.admin_key)
        # Streams do not fit through the proxy, which holds bodies in memory.
        self._direct = Client(server.url, installation.admin_key)
        self._stopping = threading.Event()
        self._submitting = threading.Event()
        self._submitting.set()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._gates = installation.home / "gates"

    def start(self) -> None:
        self._thread.start()

    def submit_no_more(self) -> None:
        self._submitting.clear()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()
        self._direct.close()

    def _live(self) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self._submit, 10),
            (self._look, 6),
            (self._list, 1),
            (self._cancel, 1),
            (self._retry, 2),
            (self._follow, 1),
            (self._download, 3),
        ]
        while not self._stopping.wait(self._rng.expovariate(1 / self._every_s)):
            (action,) = self._rng.choices([it for it, _ in actions], [weight for _, weight in actions])
            try:
                action()
            except Unavailable:
                self._book.counts["gave up for now"] += 1
            except Exception:  # noqa: BLE001 - a finding
                self._book.violations.append(traceback.format_exc())

    def _submit(self) -> None:
        if not self._submitting.is_set() or len(self._book.open) >= MOST_OPEN:
            return
        kind, key = self._rng.choice([installation.KIND, sims.KIND, sims.KIND]), secrets.token_hex(16)
        spec: dict[str, Any] = {"steps": self._rng.choice(STEPS), "every": CADENCE, "salt": secrets.token_hex(6)}
        if kind == installation.KIND:
            gates = self._gates / spec["salt"]
            spec |= {"gates": str(gates), "trace": "/dev/null", "step_s": self._rng.choice([0.01, 0.1])}
            if self._rng.random() < 0.1:
                self._misbehave(gates, f"step-{self._rng.randrange(1, spec['steps'])}")
        deadline_s = self._rng.choice(DEADLINES_S) if self._rng.random() < 0.15 else None
        priority = self._rng.randrange(3)
        job = self._persist(
            lambda: self._client.submit(
                spec, kind=kind, priority=priority, deadline_s=deadline_s, idempotency_key=key
            )
        )
        self._book.counts["submitted"] += 1
        self._book.note(job)

    def _misbehave(self, gates: Path, gate: str) -> None:
        """Have the engine quit or hang there, once."""
        gates.mkdir(parents=True)
        (gates / f"{gate}.stop").write_text(self._rng.choice(["quit", "quit", "hang"]))

    def _look(self) -> None:
        if job_id := self._book.some(self._rng, self._book.open):
            self._book.ask(job_id, lambda: self._client.get_job(job_id))
            self._book.counts["looked at"] += 1

    def _list(self) -> None:
        for number, job in enumerate(self._client.jobs(states=["running", "queued"])):  # type: ignore[list-item]
            if job.id in self._book.asked and number < MOST_OPEN:
                list(self._client.events(job.id))
                break
        self._book.counts["listed"] += 1

    def _cancel(self) -> None:
        if job_id := self._book.some(self._rng, self._book.open):
            with self._book.guard:
                self._book.canceled.add(job_id)
            try:
                self._book.ask(job_id, lambda: self._persist(lambda: self._client.cancel(job_id)))
            except IllegalTransition:
                return  # it had ended meanwhile
            self._book.surely_canceled.add(job_id)
            self._book.counts["canceled"] += 1

    def _retry(self) -> None:
        ended = {job_id for job_id, state in list(self._book.ended.items()) if state is not JobState.SUCCEEDED}
        job_id = self._book.some(self._rng, ended)
        if job_id is None or not self._submitting.is_set() or len(self._book.open) >= MOST_OPEN:
            return
        self._book.note(self._persist(lambda: self._client.retry(job_id)))
        self._book.counts["retried"] += 1

    def _follow(self) -> None:
        """The stream to its end: every event once, in order."""
        job_id = self._book.some(self._rng, self._book.open)
        if job_id is None:
            return
        seen, ends_s = [], time.monotonic() + PATIENCE_S
        for event in self._direct.events(job_id, follow=True):
            seen.append(event.id)
            if self._stopping.is_set() or time.monotonic() > ends_s:
                return
        there = [event.id for event in self._direct.events(job_id)]
        if seen != there:
            self._book.violations.append(f"followed {job_id}: {seen}, but its events are {there}")
        self._book.ask(job_id, lambda: self._direct.get_job(job_id))
        self._book.counts["followed to the end"] += 1

    def _download(self) -> None:
        done = {job_id for job_id, state in list(self._book.ended.items()) if state is JobState.SUCCEEDED}
        job_id = self._book.some(self._rng, done)
        if job_id is None:
            return
        target = self._installation.home / f"download-{secrets.token_hex(4)}"
        try:
            self._client.download(job_id, target)
        except BlobMismatch:
            self._book.counts["refused what was spoiled twice on its way"] += 1
            return
        job = self._client.get_job(job_id)
        content = [path.read_bytes() for path in target.rglob("*") if path.is_file()]
        if job.kind != "train" and content != [counted(job.spec["steps"], job.spec["salt"])]:
            self._book.violations.append(f"downloaded of {job_id}: {content}")
        for path in target.rglob("*"):
            path.unlink()
        target.rmdir()
        self._book.counts["downloaded"] += 1

    def _persist(self, call: Callable[[], T]) -> T:
        """Ask until there is an answer, as somebody does who wants to know."""
        ends_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except Unavailable:
                if time.monotonic() > ends_s:
                    raise


def state_of(client: Client, book: Book) -> int:
    """How many jobs are still open, by asking for each of them."""
    for job_id in sorted(book.open):
        try:
            book.ask(job_id, partial(client.get_job, job_id))
        except (GiornataError, httpx.HTTPError):
            continue
    return len(book.open)
