"""Draw all pictures that are left: the innocent ones are drawn in the end, and those that crash engines fail."""

import hashlib
import itertools
import zlib

from tests.contract.model.invariants import InvariantChecker
from tests.contract.model.model_rig import ModelRig, NodePlace

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.attempts.record_pictures import record_results
from giornata.control.jobs.stop_job import expire_deadlines
from giornata.control.pictures.await_annotations import keep_annotation
from giornata.control.pictures.settle_order import settle_orders
from giornata.control.storage.uploads import request_attempt_uploads
from giornata.domain.generation.picture import OPEN, ORDER_KINDS, picture_key
from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY
from giornata.protocol.node.pictures import DrawnPicture, LeasedPicture, PictureLease, PictureResults
from giornata.protocol.node.work import Claim, CommitCache, CompleteAttempt, FailAttempt
from giornata.protocol.uploads import FileToUpload, UploadRequest

HOUR_MS = 3_600_000
ROUNDS = 6


def draw_the_rest(rig: ModelRig, checker: InvariantChecker, *, latest_ms: int) -> None:
    """Let fresh machines draw whatever waits. `latest_ms`: the highest that the clock ever showed before it was set
    back, up to which orders may wait to be told of."""
    behind_ms = max(0, latest_ms - rig.clock.now_ms())
    fresh = itertools.count(1)
    waiting: set[tuple[str, int]] | None = None
    for _ in range(ROUNDS + -(-behind_ms // HOUR_MS)):
        rig.clock.advance_s(HOUR_MS / 1000)
        expire_deadlines(rig.ctx)
        lapse_leases(rig.ctx)
        settle_orders(rig.ctx)
        rows = checker.look().pictures
        waiting = {(row.order_id, row.number) for row in rows if row.state in OPEN} if waiting is None else waiting
        while (lease := _claim(rig, next(fresh))) is not None:
            _draw(rig, lease)
            checker.look()
        orders = [row for row in checker.look().jobs if row.kind in ORDER_KINDS]
        if all(row.state in TERMINAL for row in orders):
            break
    unended = [row for row in checker.now.jobs if row.kind in ORDER_KINDS and row.state not in TERMINAL]
    assert not unended, f"orders never end: {unended}"
    for row in checker.now.pictures:
        if (row.order_id, row.number) in (waiting or ()) and row.state != "canceled":
            expected = "failed" if _crashes(row.order_id, row.number) else "succeeded"
            assert row.state == expected, f"{row} is not {expected} in the end"


def _crashes(order_id: str, number: int) -> bool:
    """Whether an engine that draws this picture dies of it. It is one in six."""
    return zlib.crc32(f"{order_id} {number}".encode()) % 6 == 0


def _claim(rig: ModelRig, number: int) -> PictureLease | None:
    """Claim for a fresh node. Every second one says that it holds nothing, and so may be told to wait for others."""
    place = NodePlace(number=10_000 + number, machine=f"drawing-{number}", kinds=("generate", "preprocess"))
    claim = Claim(
        request_id=f"drawing-request-{number}",
        node=place.process(0),
        kinds=place.kinds,
        max_pictures=8,
        held_version=0 if number % 2 else None,
    )
    return claim_once(rig.ctx, place.caller, claim).picture_lease


def _draw(rig: ModelRig, lease: PictureLease) -> None:
    if any(_crashes(each.order_id, each.number) for each in lease.pictures):
        fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message="died"))
        return
    if lease.only_annotates:
        _annotate(rig, lease)
        return
    drawn = tuple(_drawn(rig, lease, each) for each in lease.pictures)
    reply = record_results(rig.ctx, lease.attempt_id, PictureResults(drawn=drawn, complete=True))
    assert len(reply.accepted) == len(drawn), f"{reply} to {drawn}"


def _annotate(rig: ModelRig, lease: PictureLease) -> None:
    for key in lease.wanted_annotations:
        data = f"the last of {key}".encode()
        file = FileToUpload(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        (ticket,) = request_attempt_uploads(rig.ctx, lease.attempt_id, UploadRequest(files=(file,))).items
        if ticket.put is not None:
            rig.blobs.put(ticket.put.url.removeprefix("memory:///"), data)
        commit = CommitCache(upload_id=ticket.upload_id, sha256=file.sha256, size_bytes=file.size_bytes)
        keep_annotation(rig.ctx, lease.attempt_id, ANNOTATION_ENTRY + key, commit)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=0))


def _drawn(rig: ModelRig, lease: PictureLease, picture: LeasedPicture) -> DrawnPicture:
    data = f"{picture.order_id} {picture.number}".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    with rig.store.read() as tx:
        job = tx.jobs.get(picture.order_id)
    assert job is not None
    rig.blobs.put(picture_key(job.project_id, lease.attempt_id, sha256), data)
    return DrawnPicture(order_id=picture.order_id, number=picture.number, sha256=sha256, size_bytes=len(data))
