"""Check a node's report of pictures before anything of it is recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from giornata.control.context import Context
from giornata.control.pictures.picture_uploads import file_faults, projects_of, read_projects, stored_sizes
from giornata.control.ports.node_queries.picture_store import LeaseResults, PictureKey, PictureOutcome
from giornata.domain.errors import BlobMismatch, BlobMissing, Fault, InvalidInput, LeaseLost
from giornata.domain.generation.picture import PictureState, error_words, fails_at_once, picture_key
from giornata.protocol.node.pictures import (
    DrawnPicture,
    FailedPicture,
    PictureFlag,
    PictureId,
    PictureResults,
)

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureReport:
    """A node's report of pictures of one lease. `checked` makes it: storage has the bytes of what the lease got."""

    attempt_id: str
    results: PictureResults

    @property
    def asked(self) -> tuple[PictureKey, ...]:
        """The pictures that the report names."""
        return (*map(key_of, self.results.drawn), *map(key_of, self.results.failed))

    @property
    def passing(self) -> tuple[FailedPicture, ...]:
        """The pictures that failed here and that another node may draw."""
        return tuple(each for each in self.results.failed if not fails_at_once(each.reason))

    @property
    def lasting(self) -> LeaseResults:
        """The results that stand from now on. Pictures that are taken back need a lease that goes on."""
        failed = (_failed(each) for each in self.results.failed if fails_at_once(each.reason))
        outcomes = (*map(_drawn, self.results.drawn), *failed)
        ends = self.results.complete and not self.passing
        return LeaseResults(attempt_id=self.attempt_id, outcomes=outcomes, ends=ends)


def checked(ctx: Context, attempt_id: str, results: PictureResults) -> PictureReport:
    """Compare the report with itself, and with storage, outside of any transaction.

    Raises LeaseLost; InvalidInput with every fault; BlobMissing and BlobMismatch when storage has no bytes of a
    picture that the lease still has to draw, or others. Then nothing is stored.
    """
    _check(ctx, results)
    try:
        projects = projects_of(ctx, attempt_id)
        try:
            _look(ctx, attempt_id, results, projects)
        except (BlobMissing, BlobMismatch):
            # What the lease got may be more than what it still has to draw.
            _look(ctx, attempt_id, results, read_projects(ctx, attempt_id))
    except LeaseLost:
        if not results.complete:  # this very report may have ended the lease before
            raise
    return PictureReport(attempt_id=attempt_id, results=results)


def _check(ctx: Context, results: PictureResults) -> None:
    faults = [fault for number, each in enumerate(results.drawn) for fault in file_faults(ctx, number, each)]
    for number, each in enumerate(results.drawn):
        if each.sha256 is None and not each.flags & PictureFlag.BLOCKED:
            message = "is missing, and the picture is not blocked"
            faults.append(Fault(where=f"drawn.{number}.sha256", message=message))
    keys = [*map(key_of, results.drawn), *map(key_of, results.failed)]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        faults.append(Fault(where="drawn", message=f"picture {key.number} of {key.order_id} is there twice"))
    if faults:
        raise InvalidInput(faults)


def _look(ctx: Context, attempt_id: str, results: PictureResults, projects: Mapping[PictureKey, str]) -> None:
    """Compare the lease's drawn pictures with what storage has of this lease."""
    files = [each for each in results.drawn if each.sha256 is not None and key_of(each) in projects]
    if not files:
        return
    sizes = stored_sizes(ctx, attempt_id, {projects[key_of(each)] for each in files})
    keys = {key_of(each): picture_key(projects[key_of(each)], attempt_id, each.sha256 or "") for each in files}
    if missing := [each for each in files if keys[key_of(each)] not in sizes]:
        raise BlobMissing(f"storage has no bytes of {_named(missing)}: upload them, and report again")
    if others := [each for each in files if sizes[keys[key_of(each)]] != each.size_bytes]:
        raise BlobMismatch(f"storage has bytes of another size for {_named(others)}")


def _named(pictures: Sequence[DrawnPicture]) -> str:
    shown = ", ".join(f"picture {each.number} of {each.order_id}" for each in pictures[:SHOWN])
    return shown if len(pictures) <= SHOWN else f"{shown} and {len(pictures) - SHOWN} more"


def _drawn(each: DrawnPicture) -> PictureOutcome:
    blocked = bool(each.flags & PictureFlag.BLOCKED)
    return PictureOutcome(
        key=key_of(each),
        state=PictureState.SUCCEEDED,
        sha256=None if blocked else each.sha256,
        size_bytes=None if blocked else each.size_bytes,
        flags=each.flags,
    )


def _failed(each: FailedPicture) -> PictureOutcome:
    return PictureOutcome(key=key_of(each), state=PictureState.FAILED, error=error_words(each.message, each.reason))


def key_of(each: PictureId) -> PictureKey:
    """Return the key of the picture that a message names."""
    return PictureKey(each.order_id, each.number)
