"""Take results of pictures from nodes, several at a time. Each is fenced, counts once, and may be repeated."""

from collections.abc import Mapping, Sequence

from giornata.control.context import Context
from giornata.control.pictures.failed_pictures import take_back
from giornata.control.pictures.picture_uploads import file_faults, stored_sizes
from giornata.control.pictures.settle_order import settle_soon
from giornata.control.ports.picture_store import PictureKey, PictureOutcome, PictureRow
from giornata.control.ports.store import Transaction
from giornata.domain.errors import BlobMismatch, BlobMissing, Fault, InvalidInput, LeaseLost
from giornata.domain.picture import PictureState, fails_at_once, picture_key
from giornata.protocol.pictures import (
    DrawnPicture,
    FailedPicture,
    PictureFlag,
    PictureId,
    PictureResults,
    PictureResultsReply,
)

SHOWN = 5


def record_results(ctx: Context, attempt_id: str, results: PictureResults) -> PictureResultsReply:
    """Store results of pictures that the lease still has to draw; say which stand, and which nobody wants any more.

    Storage is looked at first, outside of the transaction. Raises LeaseLost; InvalidInput with every fault;
    BlobMissing and BlobMismatch when storage has no bytes of a wanted picture, or others. Then nothing is stored.
    """
    _check(ctx, results)
    with ctx.store.read() as tx:
        rows = tx.picture_leases.of_live_lease(attempt_id)
    if rows is None:
        raise _lost(attempt_id)
    wanted = {row.key: row for row in rows}
    _look(ctx, attempt_id, [each for each in results.drawn if _key(each) in wanted], wanted)
    lasting = [each for each in results.failed if fails_at_once(each.reason)]
    outcomes = [*map(_drawn, results.drawn), *map(_failed, lasting)]
    passing = [each for each in results.failed if not fails_at_once(each.reason) and _key(each) in wanted]
    with ctx.store.begin() as tx:
        accepted = _settled(tx, attempt_id, outcomes)
    if passing:
        taken_back = take_back(ctx, attempt_id, passing)
        accepted |= taken_back
    asked = [*map(_key, results.drawn), *map(_key, results.failed)]
    settle_soon(ctx, {key.order_id for key in accepted})
    return PictureResultsReply(
        accepted=tuple(PictureId(**key._asdict()) for key in asked if key in accepted),
        dropped=tuple(PictureId(**key._asdict()) for key in asked if key not in accepted),
        left=tuple(PictureId(**key._asdict()) for key in wanted if key not in asked),
    )


def _settled(tx: Transaction, attempt_id: str, outcomes: Sequence[PictureOutcome]) -> set[PictureKey]:
    """Return the keys of outcomes that stand now: stored here, or by an earlier request alike."""
    if not outcomes:
        return set()
    stored = tx.picture_leases.settle(attempt_id, outcomes)
    if stored is None:
        raise _lost(attempt_id)
    accepted = set(stored)
    if left := [each for each in outcomes if each.key not in accepted]:
        standing = tx.picture_leases.standing(attempt_id, [each.key for each in left])
        accepted |= {each.key for each in left if each.key in standing and standing[each.key] == each.sha256}
    return accepted


def _check(ctx: Context, results: PictureResults) -> None:
    faults = [fault for number, each in enumerate(results.drawn) for fault in file_faults(ctx, number, each)]
    for number, each in enumerate(results.drawn):
        if each.sha256 is None and not each.flags & PictureFlag.BLOCKED:
            message = "is missing, and the picture is not blocked"
            faults.append(Fault(where=f"drawn.{number}.sha256", message=message))
    keys = [*map(_key, results.drawn), *map(_key, results.failed)]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        faults.append(Fault(where="drawn", message=f"picture {key.number} of {key.order_id} is there twice"))
    if faults:
        raise InvalidInput(faults)


def _look(
    ctx: Context, attempt_id: str, drawn: Sequence[DrawnPicture], wanted: Mapping[PictureKey, PictureRow]
) -> None:
    """Compare the pictures with what storage has of this lease."""
    files = [each for each in drawn if each.sha256 is not None]
    if not files:
        return
    sizes = stored_sizes(ctx, attempt_id, {wanted[_key(each)].project_id for each in files})
    keys = {_key(each): picture_key(wanted[_key(each)].project_id, attempt_id, each.sha256 or "") for each in files}
    if missing := [each for each in files if keys[_key(each)] not in sizes]:
        raise BlobMissing(f"storage has no bytes of {_named(missing)}: upload them, and report again")
    if others := [each for each in files if sizes[keys[_key(each)]] != each.size_bytes]:
        raise BlobMismatch(f"storage has bytes of another size for {_named(others)}")


def _named(pictures: Sequence[DrawnPicture]) -> str:
    shown = ", ".join(f"picture {each.number} of {each.order_id}" for each in pictures[:SHOWN])
    return shown if len(pictures) <= SHOWN else f"{shown} and {len(pictures) - SHOWN} more"


def _drawn(each: DrawnPicture) -> PictureOutcome:
    blocked = bool(each.flags & PictureFlag.BLOCKED)
    return PictureOutcome(
        key=_key(each),
        state=PictureState.SUCCEEDED,
        sha256=None if blocked else each.sha256,
        size_bytes=None if blocked else each.size_bytes,
        flags=each.flags,
    )


def _failed(each: FailedPicture) -> PictureOutcome:
    return PictureOutcome(key=_key(each), state=PictureState.FAILED, error=f"{each.message} ({each.reason})")


def _key(each: PictureId) -> PictureKey:
    return PictureKey(each.order_id, each.number)


def _lost(attempt_id: str) -> LeaseLost:
    return LeaseLost(f"attempt {attempt_id} has ended, or never was: drop its pictures")
