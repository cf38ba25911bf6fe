"""Many nodes and owners at one moment: each picture is leased once, and nobody waits in a circle."""

import threading
from collections import Counter
from collections.abc import Callable

from tests.fixtures.pictures import Studio
from tests.fixtures.work import Workshop

from giornata.control.attempts.complete import complete
from giornata.control.caller import Caller
from giornata.control.jobs.stop_job import cancel
from giornata.control.pictures.settle_order import settle_orders
from giornata.domain.errors import IllegalTransition, LeaseLost
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.work import CompleteAttempt

OWNER = Caller(project_id=ROOT_PROJECT, scope=Scope.MEMBER, key_id="key_owner")
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


def test_of_concurrent_claims_each_picture_is_leased_once(shop: Workshop) -> None:
    studio = Studio(shop)
    studio.order(60)
    got: list[tuple[str, int]] = []

    def node(number: int) -> None:
        while (
            lease := studio.claim(number, most=4, request_id=f"race-{number}-{len(got)}").picture_lease
        ) is not None:
            got.extend((each.order_id, each.number) for each in lease.pictures)

    at_once([lambda number=number: node(number) for number in range(1, NODES + 1)])  # type: ignore[misc]
    assert len(got) == 60
    assert set(Counter(got).values()) == {1}


def test_owners_cancel_while_nodes_claim_report_and_complete(shop: Workshop) -> None:
    studio = Studio(shop)
    orders = [studio.order(12) for _ in range(6)]

    def node(number: int) -> None:
        for turn in range(6):
            lease = studio.claim(number, most=5, request_id=f"race-{number}-{turn}").picture_lease
            if lease is None:
                return
            done = [studio.upload(lease, each) for each in lease.pictures]
            try:
                if not studio.report(lease, done, complete=turn % 2 == 0).ended:
                    complete(studio.ctx, lease.attempt_id, CompleteAttempt(step=0))
            except LeaseLost:
                continue

    def owner(first: int) -> None:
        for order_id in orders[first::2]:
            try:
                cancel(studio.ctx, OWNER, order_id)
            except IllegalTransition:  # it has ended
                continue

    nodes = [lambda number=number: node(number) for number in range(1, NODES + 1)]
    at_once([*nodes, lambda: owner(0), lambda: owner(1)])  # type: ignore[list-item]
    studio.shop.clock.advance_s(5)
    settle_orders(studio.ctx)
    for order_id in orders:
        job, states = studio.shop.job(order_id), set(studio.states(order_id))
        assert job["state"] in {"canceled", "succeeded"}
        assert states <= {"succeeded", "canceled"}
