"""Orders of pictures: users place and stop them, and nodes lease, draw, fail and report their pictures.

Nodes that draw are others than those that take jobs; two of them share a machine.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from tests.contract.model.calls import DIED, CheckedCalls, HeldPictures
from tests.contract.model.model_rig import PROJECTS, NodePlace, Row, owner
from tests.contract.model.sudden_death import Died

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.record_pictures import record_results
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.control.pictures.picture_uploads import picture_uploads
from giornata.control.pictures.settle_order import settle_orders
from giornata.control.projects.set_budget import change_job
from giornata.domain.errors import BlobMissing, GiornataError, LeaseLost, OverBudget
from giornata.domain.generation.picture import OPEN, picture_key
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.annotators import annotation_key
from giornata.protocol.generation.preprocess import annotator_base_key
from giornata.protocol.jobs import ChangeJob, SubmitJob
from giornata.protocol.node.pictures import (
    DrawnPicture,
    FailedPicture,
    LeasedPicture,
    PictureId,
    PictureLease,
    PictureResults,
    PictureUploads,
)
from giornata.protocol.node.work import Claim, CompleteAttempt, FailAttempt, Heartbeat, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT

Key = tuple[str, int]  # order, number
PLACES_THAT_DRAW = (
    NodePlace(number=10, machine="machine-1", kinds=("generate",)),
    NodePlace(number=11, machine="machine-4", kinds=("generate",)),
    NodePlace(number=12, machine="machine-4", kinds=("generate",)),
    NodePlace(number=13, machine="machine-5", kinds=("generate",)),
    NodePlace(number=14, machine="machine-3@ann", project="ann", kinds=("generate",)),
)
BY_MODEL = ("depth", "pose")
BASES_BY_MODEL = {annotator_base_key(name) for name in BY_MODEL}
MOST = (1, 2, 4, 8)
BUDGETS = (None, None, 1, 500, 50_000)  # micro-dollars
CAUSES = (Reason.CRASHED, Reason.NODE_DISK, Reason.NODE_TOO_SMALL, Reason.BAD_SPEC)
LATEST = 4
FAILED_AGAIN_MS = 600_000


class PictureActions(CheckedCalls):
    """Actions of those who order pictures, and of nodes that draw them."""

    # ---- users

    def place_order(self, a: int, b: int) -> None:
        project = PROJECTS[a % len(PROJECTS)]
        spec = {"model": "some/model", "prompts": ["a fox"], "num_images_per_prompt": 1 + b % 6, "height": 64}
        spec |= {"width": 64 if a % 4 else 128, "num_inference_steps": 1 + a % 3}
        request = SubmitJob(
            kind="generate",
            spec=spec,
            priority=a % 2,
            deadline_s=60 * (1 + b) if b % 7 == 0 else None,
            budget_micro_usd=BUDGETS[b % len(BUDGETS)],
        )
        outcome = self.call(lambda: submit(self.ctx, owner(project), request, None))
        if outcome is DIED:
            self._find_new_jobs()
        elif not isinstance(outcome, OverBudget):
            self.actors.orders.append((outcome[0].id, project))

    def cancel_order(self, a: int, b: int) -> None:
        if self.actors.orders:
            order_id, project = self.actors.orders[-1 - a % min(len(self.actors.orders), LATEST)]
            self.call(lambda: cancel(self.ctx, owner(project), order_id), again=True)

    def budget_of_order(self, a: int, b: int) -> None:
        if self.actors.orders:
            order_id, project = self.actors.orders[-1 - a % min(len(self.actors.orders), LATEST)]
            change = ChangeJob(budget_micro_usd=BUDGETS[b % len(BUDGETS)])
            self.call(lambda: change_job(self.ctx, owner(project), order_id, change))

    def tell_orders(self, a: int, b: int) -> None:
        """The loop that tells of orders, and ends those whose pictures have all ended."""
        self.call(lambda: settle_orders(self.ctx), again=True)

    # ---- claims

    def claim_pictures(self, a: int, b: int) -> None:
        """One of the claims' replies in eight is lost."""
        place, request_id = PLACES_THAT_DRAW[a % len(PLACES_THAT_DRAW)], f"request-{next(self.actors.numbers):07d}"
        self.actors.picture_requests.append((place, request_id, MOST[b // 2 % len(MOST)]))
        self._ask_for_pictures(place, request_id, MOST[b // 2 % len(MOST)], lost=b % 8 == 0, again=b % 3 == 0)

    def claim_pictures_again(self, a: int, b: int) -> None:
        """The same request, maybe long after."""
        if self.actors.picture_requests:
            asked = self.actors.picture_requests[-1 - a % min(len(self.actors.picture_requests), 1 + b)]
            self._ask_for_pictures(*asked, lost=False, again=False)

    def _ask_for_pictures(
        self, place: NodePlace, request_id: str, most: int, *, lost: bool, again: bool, **said: Any
    ) -> None:
        claim = Claim(request_id=request_id, node=place.process(0), kinds=place.kinds, max_pictures=most, **said)
        before, leases = self._rows(), set(self.checker.attempts) if self.exact else set()
        is_full = self.is_full(claim.node.node_id)
        reply = self.call(lambda: claim_once(self.ctx, place.caller, claim), again=again)
        if reply is DIED or reply.picture_lease is None:
            return
        lease = reply.picture_lease
        if self.exact and lease.attempt_id not in leases:
            assert not is_full, f"{claim.node.node_id} holds as many leases as it may"
            self._check_fresh(place, lease, most, before)
        if lease.pictures and not lost:
            held = HeldPictures(
                attempt_id=lease.attempt_id,
                place=place,
                pictures=lease.pictures,
                wanted_annotations=lease.wanted_annotations,
                only_annotates=lease.only_annotates,
            )
            self.actors.picture_leases.append(held)

    def _check_fresh(self, place: NodePlace, lease: PictureLease, most: int, before: dict[Key, Row]) -> None:
        rows = [before[_key(each)] for each in lease.pictures]
        assert {row.state for row in rows} == {"queued"}, f"{lease} has what others have: {rows}"
        assert len(rows) <= min(most, *(row.together for row in rows)), f"{lease} has too many of {rows}"
        assert len({row.batch_key for row in rows}) == 1, rows
        assert all(place.project in {ROOT_PROJECT, row.project_id} for row in rows), rows
        self._check_annotations(place, lease, rows)
        since_ms = self.rig.clock.now_ms() - FAILED_AGAIN_MS
        failures = [row for row in self.checker.now.picture_failures if row.at_ms >= since_ms]
        failed_here = {(row.order_id, row.number) for row in failures if row.machine_id == place.machine}
        assert failed_here.isdisjoint(map(_key, lease.pictures)), f"{lease} went to where it has just failed"

    def _check_annotations(self, place: NodePlace, lease: PictureLease, rows: list[Row]) -> None:
        """A picture is drawn where nodes draw, and once its project keeps what a model makes of its control pictures;
        until then it goes to nodes that annotate."""
        kept = {(row.project_id, row.key) for row in self.checker.look().caches}
        for each, row in zip(lease.pictures, rows, strict=True):
            runs_a_model = each.params.get("annotator") in BY_MODEL
            kind = "preprocess" if runs_a_model else "generate"
            assert kind in place.kinds, f"{row} went to a node for {place.kinds}"
            assert lease.only_annotates is (runs_a_model and row.batch_key != row.base_key), f"{lease} of {row}"
            for use in each.params.get("controlnets", ()):
                if use["annotator"] in BY_MODEL:
                    key = annotation_key(use["image"], use["annotator"], use["annotator_params"])
                    assert (row.project_id, f"annotation:{key}") in kept, f"{row} is drawn before its annotation"

    # ---- results

    def draw(self, a: int, b: int) -> None:
        """Upload some pictures and report them. One report in four completes the lease."""
        if held := self._some_lease(a, b):
            first = b % len(held.pictures)
            some = held.pictures[first : first + 1 + a % 4]
            drawn = [self._drawn(each, other=b >= 56) for each in some]
            uploads = PictureUploads(pictures=tuple(drawn))
            reply = self.call(lambda: picture_uploads(self.ctx, held.attempt_id, uploads))
            for upload in () if reply is DIED or isinstance(reply, GiornataError) else reply.uploads:
                (each,) = [each for each in some if _key(each) == (upload.order_id, upload.number)]
                self.rig.blobs.put(upload.url.removeprefix("memory:///"), _content(each, other=b >= 56))
            results = PictureResults(drawn=tuple(drawn), complete=b % 4 == 1)
            self._report(held, results, again=b % 3 == 0)

    def steal(self, a: int, b: int) -> None:
        """A node reports pictures of another lease, with bytes of its own."""
        mine, other = self._some_lease(a, b), self._some_lease(b, a)
        if mine and other:
            drawn = [self._drawn(each, other=True) for each in other.pictures[:2]]
            for each, said in zip(other.pictures, drawn, strict=False):
                for project in PROJECTS:
                    self.rig.blobs.put(
                        picture_key(project, mine.attempt_id, said.sha256 or ""), _content(each, other=True)
                    )
            self._report(mine, PictureResults(drawn=tuple(drawn)), again=False)

    def lie(self, a: int, b: int) -> None:
        """A node reports bytes that it never sent."""
        if held := self._some_lease(a, b):
            picture = held.pictures[b % len(held.pictures)]
            said = DrawnPicture(order_id=picture.order_id, number=picture.number, sha256="0" * 64, size_bytes=7)
            self._report(held, PictureResults(drawn=(said,)), again=False)

    def fail_picture(self, a: int, b: int) -> None:
        """A node could not draw one picture of its lease."""
        if held := self._some_lease(a, b):
            picture = held.pictures[b % len(held.pictures)]
            failed = FailedPicture(
                order_id=picture.order_id, number=picture.number, reason=CAUSES[b // 4 % len(CAUSES)], message="no"
            )
            self._report(held, PictureResults(failed=(failed,)), again=False)

    def _report(self, held: HeldPictures, results: PictureResults, *, again: bool) -> None:
        """Each result that is accepted stands from now on, and no other picture of those is changed."""
        lease = self.checker.attempts[held.attempt_id] if self.exact else None
        before = self._rows()
        action = lambda: record_results(self.ctx, held.attempt_id, results)  # noqa: E731
        outcome = self.call(action, again=again, lasting=True)
        if outcome is DIED or lease is None:
            return
        self.checker.look()
        now = self._rows()
        if lease.ended_at_ms is not None and not (results.complete and lease.reason == Reason.SUCCEEDED):
            assert isinstance(outcome, LeaseLost), f"{outcome!r} to {lease}, which has ended"
        if isinstance(outcome, GiornataError):
            assert isinstance(outcome, LeaseLost | BlobMissing), f"{outcome!r} to {results}"
            assert now == before, f"{outcome!r}, and something was changed"
            return
        accepted = {(each.order_id, each.number) for each in outcome.accepted}
        for each in results.drawn:
            if _key(each) not in now:  # its order was deleted
                assert _key(each) not in accepted, f"{outcome} of {results}, and the picture is gone"
                continue
            row, was = now[_key(each)], before[_key(each)]
            if was.state == "leased" and was.base_key in BASES_BY_MODEL and was.batch_key != was.base_key:
                assert row.state in OPEN, f"{row} waited for its annotation, and {results} ended it"
                continue
            stands = (row.state, row.lease, row.sha256) == ("succeeded", held.attempt_id, each.sha256)
            assert stands is (_key(each) in accepted), f"{outcome} of {results}: {row}"
            had = was.state == "leased" and was.lease == held.attempt_id
            # Money may be used up by what was just drawn: then the order's other pictures wait.
            kept = row == was or (was.state, row.state) == ("queued", "paused")
            assert stands if had else kept, f"{results} of {was} made {row}"

    # ---- ends

    def beat_pictures(self, a: int, b: int) -> None:
        if held := self._some_lease(a, b):
            self.write(held, lambda: heartbeat(self.ctx, held.attempt_id, Heartbeat()), again=b % 3 == 0)

    def end_lease(self, a: int, b: int) -> None:
        """A node is done with its lease, or gives it back, with some of its pictures or none."""
        if held := self._some_lease(a, b):
            done, back = CompleteAttempt(step=0), ReleaseAttempt()
            if b % 2:
                action, reason = lambda: complete(self.ctx, held.attempt_id, done), Reason.SUCCEEDED
            else:
                action, reason = lambda: release(self.ctx, held.attempt_id, back), back.reason
            self.write(held, action, end=reason, again=b % 3 == 0)

    def crash_lease(self, a: int, b: int) -> None:
        """The engine dies. Nobody is blamed: the pictures come again in halves."""
        if held := self._some_lease(a, b):
            reason = CAUSES[b // 4 % len(CAUSES)] if b % 4 == 0 else Reason.CRASHED
            report = FailAttempt(reason=reason, message="died")
            lease = self.checker.attempts[held.attempt_id] if self.exact else None
            had = {key: row for key, row in self._rows().items() if row.lease == held.attempt_id}
            left = {key for key, row in had.items() if row.state == "leased"}
            action = lambda: fail(self.ctx, held.attempt_id, report)  # noqa: E731
            outcome = self.write(held, action, end=reason, again=b % 3 == 0)
            if lease is None or lease.ended_at_ms is not None or isinstance(outcome, Died | GiornataError):
                return
            now = self._rows()
            assert all(now[key].state != "leased" for key in left), f"{lease} ended, and has {left}"
            if reason is Reason.CRASHED:
                most = max(1, len(left) // 2)
                assert all(now[key].together <= most for key in left), f"{left} come again {most} at a time at most"
                tried = [now[key].tries - had[key].tries for key in left]
                assert tried == ([1] if len(left) == 1 else [0] * len(left)), f"{left} were tried {tried} times"

    # ---- what is known

    def _rows(self) -> dict[Key, Row]:
        pictures: Sequence[Row] = self.checker.look().pictures if self.exact else ()
        return {_key(row): row for row in pictures}

    def _some_lease(self, a: int, b: int) -> HeldPictures | None:
        """Mostly one of the latest leases, and one that is good if that is known; sometimes an old one."""
        held = self.actors.picture_leases
        if self.exact and b % 4:
            attempts = self.checker.attempts
            held = [it for it in held[-4 * LATEST :] if attempts[it.attempt_id].ended_at_ms is None] or held
        reach = len(held) if b % 5 == 0 else min(len(held), LATEST)
        return held[-1 - a % reach] if held else None

    def _drawn(self, picture: LeasedPicture, *, other: bool) -> DrawnPicture:
        data = _content(picture, other=other)
        sha256 = hashlib.sha256(data).hexdigest()
        return DrawnPicture(order_id=picture.order_id, number=picture.number, sha256=sha256, size_bytes=len(data))

    def _find_new_jobs(self) -> None:
        """Find what was made before a death. Defined where all users' actions are."""
        raise NotImplementedError


def _content(picture: LeasedPicture, *, other: bool) -> bytes:
    return f"{picture.order_id} {picture.number}{' other' if other else ''}".encode()


def _key(each: PictureId | LeasedPicture | Row) -> Key:
    return each.order_id, each.number
