"""Training's requests wait for no row that a transaction of pictures has locked. SQLite has one writer."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.domain.errors import Unavailable
from giornata.protocol.node.work import CompleteAttempt, Heartbeat

PATIENCE_S = 60.0
LOCK_MS = 300
BEAT = Heartbeat(step=7, total_steps=600, phase="train", metrics={"loss": 0.5})


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    if rig.store.dialect_name == "sqlite":
        pytest.skip("one transaction writes at a time")
    return PictureRig(rig)


@contextmanager
def uncommitted(rig: StoreRig, verb: Callable[[], object]) -> Iterator[None]:
    """Let another thread call the verb up to its first commit, which comes at the end; nobody else waits for long."""
    engine, ready, go = rig.store._writer, threading.Event(), threading.Event()

    def committing(_connection: sa.Connection) -> None:
        if threading.current_thread() is other and not ready.is_set():
            ready.set()
            assert go.wait(PATIENCE_S)

    def beginning(connection: sa.Connection) -> None:
        if threading.current_thread() is not other:
            connection.connection.cursor().execute(f"SET LOCAL lock_timeout = {LOCK_MS}")

    listeners: dict[str, Any] = {"commit": committing, "begin": beginning}
    other = threading.Thread(target=verb)
    for name, listener in listeners.items():
        sa.event.listen(engine, name, listener)
    other.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield
    finally:
        go.set()
        other.join()
        for name, listener in listeners.items():
            sa.event.remove(engine, name, listener)


def picture_verbs(picture_rig: PictureRig) -> dict[str, Callable[[], object]]:
    """What a node that draws asks for: pictures, the end of a lease, and pictures that are taken back."""
    picture_rig.order(60)
    leases = [picture_rig.lease(number) for number in (11, 12)]
    done = [picture_rig.upload(leases[0], each) for each in leases[0].pictures]
    return {
        "claim": lambda: picture_rig.lease(13),
        "results": lambda: picture_rig.report(leases[0], done, complete=True),
        "part": lambda: picture_rig.draw(leases[1], 0),
        "order": lambda: picture_rig.order(5),
    }


@pytest.mark.parametrize("verb", ["claim", "results", "part", "order"])
def test_training_claims_beats_and_commits_beside_pictures_without_a_wait(picture_rig: PictureRig, verb: str) -> None:
    rig = picture_rig.rig
    for _ in range(2):
        rig.add_job()
    lease = rig.lease(1)
    drawing = picture_verbs(picture_rig)[verb]
    with uncommitted(rig, drawing):
        assert heartbeat(rig.ctx, lease.attempt_id, BEAT).lease_s > 0
        rig.checkpoint(lease, 7)
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=7))
        assert rig.claim(2).lease is not None
    assert rig.job(lease.job_id)["state"] == "succeeded"


def test_same_lease_of_pictures_does_wait_which_the_test_above_would_notice(picture_rig: PictureRig) -> None:
    picture_rig.order(3)
    lease = picture_rig.lease(11)
    done = [picture_rig.upload(lease, each) for each in lease.pictures]
    with uncommitted(picture_rig.rig, lambda: picture_rig.report(lease, done[:1])), pytest.raises(Unavailable):
        picture_rig.report(lease, done[1:])
