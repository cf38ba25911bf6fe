"""Threads that tell and carry, while training goes on."""

import random
import threading
import time

import httpx
import pytest
from standardwebhooks import Webhook
from tests.unit.standalone.conftest import NOW

from giornata.domain.errors import InvalidInput, Unavailable
from giornata.protocol.events import EventType
from giornata.standalone.bell import TRIES, Bell, Ringing
from giornata.standalone.porter import Parcel, Porter

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
AT_ONCE_S = 20.0


class Receiver:
    """Answers with the statuses given, then 200, and keeps what came."""

    def __init__(self, *statuses):
        self.statuses, self.requests = list(statuses), []

    def __call__(self, request):
        self.requests.append(request)
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            raise httpx.ConnectError("nobody listens")
        return httpx.Response(status)


def bell_to(receiver, said, now_s):
    http = httpx.Client(transport=httpx.MockTransport(receiver))
    ringing = Ringing(url="https://example.test/hook", secret=SECRET, http=http, now_s=lambda: now_s)
    return Bell(ringing, job_id="job_1", grumble=said.append, rng=random.Random(0), wait=lambda _: None)


def ring(bell, step=20):
    bell.ring(EventType.CHECKPOINT_COMMITTED, at=NOW, data={"step": step}, about=str(step))


def test_a_delivery_is_signed_as_the_reference_library_checks_it():
    receiver = Receiver()
    bell = bell_to(receiver, [], time.time())
    ring(bell)
    bell.close(AT_ONCE_S)
    (got,) = receiver.requests
    body = Webhook(SECRET).verify(got.content, dict(got.headers))
    assert (body["type"], body["job_id"], body["data"]) == ("checkpoint.committed", "job_1", {"step": 20})
    assert body["id"] == got.headers["webhook-id"]


def test_what_fails_is_sent_again_under_the_same_id_and_the_order_is_kept():
    receiver, said = Receiver(500, 0, 200), []
    bell = bell_to(receiver, said, 0.0)
    ring(bell, 20)
    ring(bell, 40)
    bell.close(AT_ONCE_S)
    ids = [each.headers["webhook-id"] for each in receiver.requests]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert (bell.delivered, bell.given_up, said) == (2, 0, [])


def test_an_event_has_the_same_id_when_another_process_tells_of_it():
    receivers = [Receiver(), Receiver()]
    for receiver in receivers:
        bell = bell_to(receiver, [], 0.0)
        ring(bell)
        bell.close(AT_ONCE_S)
    first, second = (receiver.requests[0] for receiver in receivers)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.content == second.content


def test_a_receiver_that_stays_away_is_given_up_and_said():
    receiver, said = Receiver(*[503] * TRIES), []
    bell = bell_to(receiver, said, 0.0)
    ring(bell)
    bell.close(AT_ONCE_S)
    assert (len(receiver.requests), bell.given_up) == (TRIES, 1)
    assert "503" in said[0]


def test_a_receiver_that_says_gone_is_not_asked_again():
    receiver, said = Receiver(410), []
    bell = bell_to(receiver, said, 0.0)
    ring(bell)
    bell.close(AT_ONCE_S)
    assert len(receiver.requests) == 1 and len(said) == 1


def test_without_a_receiver_nothing_happens():
    bell = Bell(None, job_id="job_1", grumble=print, rng=random.Random(0))
    ring(bell)
    bell.close(AT_ONCE_S)
    assert bell.delivered == 0


def porter(said, patience_s=0.0):
    return Porter(grumble=said.append, monotonic_s=lambda: 0.0, rng=random.Random(0), patience_s=patience_s)


def test_parcels_are_done_in_their_order_and_their_files_are_gone(tmp_path):
    said, done, last = [], [], threading.Event()
    one = porter(said)
    for number in range(3):
        path = tmp_path / str(number)
        path.write_bytes(b"x")
        one.take(Parcel(what=str(number), path=path, deed=lambda path: done.append(path.name)))
    one.take(Parcel(what="last", path=tmp_path / "none", deed=lambda _: last.set()))
    assert last.wait(AT_ONCE_S)
    assert done == ["0", "1", "2"]
    one.close()
    assert [each for each in tmp_path.iterdir() if each.name != "none"] == []


def test_a_newer_checkpoint_takes_the_place_of_one_that_waits(tmp_path):
    said, done, go, last = [], [], threading.Event(), threading.Event()
    one = porter(said)
    one.take(Parcel(what="first", path=tmp_path / "first", deed=lambda _: go.wait(AT_ONCE_S)))
    for step, replaces in ((10, "checkpoint"), (20, ""), (30, "checkpoint")):
        path = tmp_path / str(step)
        path.write_bytes(b"x")
        one.take(Parcel(what=str(step), path=path, deed=lambda path: done.append(path.name), replaces=replaces))
    one.take(Parcel(what="last", path=tmp_path / "last", deed=lambda _: last.set()))
    go.set()
    assert last.wait(AT_ONCE_S)
    assert done == ["20", "30"]
    one.close()


def test_what_storage_refuses_for_good_is_given_up_and_said(tmp_path):
    said, last = [], threading.Event()
    one = porter(said, patience_s=1e9)

    def refuse(_):
        raise InvalidInput([])

    def away(_):
        raise Unavailable("away")

    one.take(Parcel(what="refused", path=tmp_path / "a", deed=refuse))
    one.take(Parcel(what="last", path=tmp_path / "b", deed=lambda _: last.set()))
    assert last.wait(AT_ONCE_S)
    one.hurry(0.0)
    one.take(Parcel(what="late", path=tmp_path / "c", deed=away))
    deadline_s = time.monotonic() + AT_ONCE_S
    while not one.is_idle():
        assert time.monotonic() < deadline_s
    assert one.given_up == ["refused", "late"]
    one.close()


def test_what_nobody_foresaw_in_the_thread_is_raised_where_it_is_asked_for(tmp_path):
    last = threading.Event()
    one = porter([])
    one.take(Parcel(what="bug", path=tmp_path / "a", deed=lambda _: 1 / 0))
    one.take(Parcel(what="last", path=tmp_path / "b", deed=lambda _: last.set()))
    assert last.wait(AT_ONCE_S)
    with pytest.raises(ZeroDivisionError):
        one.raise_crash()
