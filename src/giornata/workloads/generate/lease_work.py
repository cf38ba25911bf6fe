"""A lease at work: which of its pictures wait, are drawn, are written, and what was reported of them."""

from collections import deque
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.generation.preprocess import AnnotationParams, LeasedParams
from giornata.protocol.node.pictures import LeasedPicture, PictureFlag
from giornata.protocol.node.pipe import Start
from giornata.workloads.generate.lease_files import LeaseFiles
from giornata.workloads.interface import Outcome, Reporter

PICTURES = "pictures"
LONGEST_MESSAGE = 3500


def leased_pictures(start: Start) -> tuple[LeasedPicture, ...]:
    """Return the pictures of a lease. Raises WorkloadFailed when the spec holds none."""
    try:
        found = tuple(LeasedPicture.model_validate(each) for each in start.spec[PICTURES])
    except (KeyError, TypeError, ValidationError) as error:
        raise WorkloadFailed(Reason.BAD_SPEC, f"the lease lists no pictures: {error}") from error
    if not found:
        raise WorkloadFailed(Reason.BAD_SPEC, "the lease lists no pictures")
    return found


def params_of(picture: LeasedPicture) -> LeasedParams:
    """Parse a picture, or an annotation: a node may be older or newer than the server. Raises WorkloadFailed with all
    faults."""
    try:
        if "annotator" in picture.params and "model" not in picture.params:
            return AnnotationParams.model_validate(picture.params)
        return PictureParams.model_validate(picture.params)
    except ValidationError as error:
        faults = tuple(Fault(where=".".join(map(str, each["loc"])), message=each["msg"]) for each in error.errors())
        raise WorkloadFailed(Reason.BAD_SPEC, "; ".join(map(str, faults)), faults) from error


@dataclass(slots=True, kw_only=True, eq=False)
class LeaseWork:
    """One lease in the batch. `waiting` are its pictures that no row draws yet; `open` counts rows and files under
    way. A lease that is `closing` begins no further picture."""

    start: Start
    reporter: Reporter
    files: LeaseFiles
    waiting: deque[LeasedPicture]
    total: int
    open: int = 0
    drawn: int = 0
    failed: int = 0
    closing: bool = False

    @classmethod
    def of(cls, start: Start, reporter: Reporter) -> "LeaseWork":
        """Begin a lease. Raises WorkloadFailed for one without pictures."""
        pictures = leased_pictures(start)
        return cls(
            start=start,
            reporter=reporter,
            files=LeaseFiles(start, keep=reporter.cache_put),
            waiting=deque(pictures),
            total=len(pictures),
        )

    @property
    def is_over(self) -> bool:
        """Return True when no picture waits and none is under way."""
        return not self.waiting and not self.open

    def close(self) -> None:
        """Begin no further picture of this lease."""
        self.closing = True
        self.waiting.clear()

    def drop(self, pictures: Set[tuple[str, int]]) -> None:
        """Forget those of the pictures that no row draws yet."""
        self.waiting = deque(each for each in self.waiting if (each.order_id, each.number) not in pictures)

    def told_drawn(self, picture: LeasedPicture, path: Path | None, media_type: str, flags: PictureFlag) -> None:
        """Hand over a picture that is complete on disk; None: one that is blocked."""
        self.open -= 1
        self.drawn += 1
        self.reporter.picture(picture.order_id, picture.number, path, media_type=media_type, flags=int(flags))
        self.reporter.progress(self.drawn + self.failed, self.total, {})

    def told_failed(self, picture: LeasedPicture, reason: Reason, message: str) -> None:
        """Report a picture that cannot be drawn here."""
        self.open -= 1
        self.failed += 1
        self.reporter.picture_failed(picture.order_id, picture.number, reason, message[:LONGEST_MESSAGE])
        self.reporter.progress(self.drawn + self.failed, self.total, {})

    def fail_waiting(self, error: WorkloadFailed) -> None:
        """Report all pictures that wait as failed."""
        while self.waiting:
            self.open += 1
            self.told_failed(self.waiting.popleft(), error.reason, str(error))

    def outcome(self) -> Outcome:
        """Return the end of a lease whose pictures are all handed over."""
        summary: dict[str, Any] = {PICTURES: self.drawn, "failed": self.failed}
        return Outcome(step=self.drawn + self.failed, summary=summary)
