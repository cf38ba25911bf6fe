"""Many nodes and owners at one moment: each picture is leased once, and nobody waits in a circle."""

import threading
from collections import Counter
from collections.abc import Callable

from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.caller import Caller
from giornata.control.jobs.stop_job import cancel
from giornata.control.pictures.settle_order import settle_orders
from giornata.domain.errors import IllegalTransition, LeaseLost
from giornata.protocol.node.work import CompleteAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")
NODES = 6


def at_once(jobs: list[Callable[[], None]]) -> None:
    """Run them in threads. Raises what the first of them raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        start.wait()
        try:
            job()
        except BaseException as failure:  # noqa: BLE001 - it is raised again below
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_concurrent_claims_lease_each_picture_once(rig: StoreRig) -> None:
    picture_rig = PictureRig(rig)
    picture_rig.order(60)
    got: list[tuple[str, int]] = []

    def node(number: int) -> None:
        while (
            lease := picture_rig.claim(number, most=4, request_id=f"race-{number}-{len(got)}").picture_lease
        ) is not None:
            got.extend((each.order_id, each.number) for each in lease.pictures)

    at_once([lambda number=number: node(number) for number in range(1, NODES + 1)])  # type: ignore[misc]
    assert len(got) == 60
    assert set(Counter(got).values()) == {1}


def test_owners_cancel_while_nodes_claim_report_and_complete(rig: StoreRig) -> None:
    picture_rig = PictureRig(rig)
    orders = [picture_rig.order(12) for _ in range(6)]

    def node(number: int) -> None:
        for turn in range(6):
            lease = picture_rig.claim(number, most=5, request_id=f"race-{number}-{turn}").picture_lease
            if lease is None:
                return
            done = [picture_rig.upload(lease, each) for each in lease.pictures]
            try:
                if not picture_rig.report(lease, done, complete=turn % 2 == 0).ended:
                    complete(picture_rig.ctx, lease.attempt_id, CompleteAttempt(step=0))
            except LeaseLost:
                continue

    def owner(first: int) -> None:
        for order_id in orders[first::2]:
            try:
                cancel(picture_rig.ctx, OWNER, order_id)
            except IllegalTransition:  # it has ended
                continue

    nodes = [lambda number=number: node(number) for number in range(1, NODES + 1)]
    at_once([*nodes, lambda: owner(0), lambda: owner(1)])  # type: ignore[list-item]
    picture_rig.rig.clock.advance_s(5)
    settle_orders(picture_rig.ctx)
    for order_id in orders:
        job, states = picture_rig.rig.job(order_id), set(picture_rig.states(order_id))
        assert job["state"] in {"canceled", "succeeded"}
        assert states <= {"succeeded", "canceled"}


def test_report_that_arrives_several_times_at_once_takes_each_place_of_an_order_once(rig: StoreRig) -> None:
    picture_rig = PictureRig(rig)
    order_id = picture_rig.order(24)
    for turn in range(8):
        lease = picture_rig.lease(1, most=3, request_id=f"race-turn-{turn}")
        done = [picture_rig.upload(lease, each) for each in lease.pictures]
        at_once([lambda: picture_rig.report(lease, done)] * NODES)  # noqa: B023 - they end within the turn
        (order,) = rig.rows(schema.picture_orders, order_id=order_id)
        places = [row["place"] for row in rig.rows(schema.pictures, order_id=order_id) if row["place"] is not None]
        assert (order["ended"], sorted(places)) == (3 * (turn + 1), list(range(1, 3 * (turn + 1) + 1)))
        complete(picture_rig.ctx, lease.attempt_id, CompleteAttempt(step=0))
