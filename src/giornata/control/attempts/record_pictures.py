"""Record results of pictures from nodes, several at a time. Each is fenced, counts once, and may be repeated.

A report may end its lease. Reports that come together share a transaction, and on PostgreSQL its statements.
"""

from collections.abc import Iterable, Sequence

from giornata.control.attempts.ending.judge_machines import judge_drawers
from giornata.control.context import Context
from giornata.control.pictures.failed_pictures import take_back
from giornata.control.pictures.picture_report import PictureReport, checked, key_of
from giornata.control.pictures.settle_order import settle_soon
from giornata.control.ports.node_queries.picture_store import LeaseSettled, PictureKey
from giornata.control.ports.store import Transaction
from giornata.domain.errors import GiornataError, LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pictures import PictureId, PictureResults, PictureResultsReply


def record_results(ctx: Context, attempt_id: str, results: PictureResults) -> PictureResultsReply:
    """Store results of pictures that the lease still has to draw; return which are stored, and which are no longer
    wanted.

    With `complete` the lease ends as well; a repeat is answered alike. Raises as `checked`.
    """
    (answer,) = record_each(ctx, [checked(ctx, attempt_id, results)])
    if isinstance(answer, GiornataError):
        raise answer
    return answer


def record_each(ctx: Context, reports: Sequence[PictureReport]) -> list[PictureResultsReply | GiornataError]:
    """Record each of them in one transaction, as `record_results` does. No two of one lease."""
    now_ms = ctx.clock.now_ms()
    given = [each.lasting for each in reports]
    with ctx.store.begin() as tx:
        settled = tx.picture_leases.settle_each(given, at_ms=now_ms)
        stored = [_answer(tx, report, settled.get(report.attempt_id)) for report in reports]
        ended = [each.attempt_id for each in given if each.ends and each.attempt_id in settled]
        if ended:
            judge_drawers(tx, ctx, [settled[each].machine_id for each in ended], at_ms=now_ms)
    for attempt_id in ended:
        ctx.memory.forget_lease(attempt_id)
    answers = [_with_taken_back(ctx, *each) for each in zip(reports, stored, strict=True)]
    replies = [each for each in answers if isinstance(each, PictureResultsReply)]
    settle_soon(ctx, {picture.order_id for reply in replies for picture in reply.accepted})
    return answers


def _answer(tx: Transaction, report: PictureReport, settled: LeaseSettled | None) -> PictureResultsReply | LeaseLost:
    """Return the reply for results that were just stored, or were by an earlier report alike."""
    outcomes, ended = report.lasting.outcomes, report.lasting.ends
    if settled is None:
        attempt = tx.attempts.get(report.attempt_id) if ended else None
        if attempt is None or not attempt.pictures or attempt.reason is not Reason.SUCCEEDED:
            return LeaseLost(f"attempt {report.attempt_id} has ended, or never was: drop its pictures")
    accepted = set[PictureKey]() if settled is None else set(settled.stored)
    if left := [each for each in outcomes if each.key not in accepted]:
        standing = tx.picture_leases.standing(report.attempt_id, [each.key for each in left])
        accepted |= {each.key for each in left if each.key in standing and standing[each.key] == each.sha256}
    # A picture that failed here for a passing reason is taken back next, if the lease had it.
    taken_back = {key_of(each) for each in report.passing}
    had = () if settled is None or ended else settled.had
    accepted |= taken_back.intersection(had)
    return PictureResultsReply(
        accepted=_ids(key for key in report.asked if key in accepted),
        dropped=_ids(key for key in report.asked if key not in accepted),
        left=_ids(key for key in had if key not in report.asked),
        ended=ended,
    )


def _with_taken_back(
    ctx: Context, report: PictureReport, answer: PictureResultsReply | LeaseLost
) -> PictureResultsReply | GiornataError:
    """Take back the pictures that failed for a passing reason; the other pictures belong to no lease any more."""
    if isinstance(answer, LeaseLost) or not report.passing:
        return answer
    keys = {key_of(each) for each in answer.accepted}
    passing = [each for each in report.passing if key_of(each) in keys]
    if not passing:
        return answer
    try:
        gone = {key_of(each) for each in passing} - take_back(ctx, report.attempt_id, passing)
    except GiornataError as error:
        return error
    return answer.model_copy(
        update={
            "accepted": _ids(key for key in report.asked if key in keys - gone),
            "dropped": _ids(key for key in report.asked if key not in keys - gone),
        }
    )


def _ids(keys: Iterable[PictureKey]) -> tuple[PictureId, ...]:
    return tuple(PictureId(**key._asdict()) for key in keys)
