"""What leaves the server: signed requests, to judged addresses, with an end to every wait."""

import asyncio
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_network
from queue import Queue
from types import FrameType

import httpx
import pytest
from standardwebhooks import Webhook as PublicWebhook
from tests.fixtures.webhooks import receiving

from giornata.control.ports.notifier import MessageRun, OutgoingMessage, RunOutcome
from giornata.domain.errors import InvalidInput
from giornata.outbound.background_notifier import BackgroundNotifier
from giornata.outbound.public_addresses import AddressRule
from giornata.protocol.project.webhook_endpoints import WebhookFormat

SECRETS = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")
THIS_MACHINE = AddressRule(own_networks=(ip_network("127.0.0.0/8"),))
WAIT_S = 60.0


@contextmanager
def notifying(
    rule: AddressRule = THIS_MACHINE, *, timeout_s: float = WAIT_S, transport: httpx.AsyncBaseTransport | None = None
) -> Iterator[BackgroundNotifier]:
    verify = ssl.create_default_context()
    connect = (lambda: transport) if transport else partial(httpx.AsyncHTTPTransport, verify=verify, trust_env=False)
    notifier = BackgroundNotifier(rule, None, connect=connect, timeout_s=timeout_s)
    yield notifier
    notifier.close()


def outcome(notifier: BackgroundNotifier, url: str, *bodies: str) -> RunOutcome:
    """Send messages with these bodies, and wait for what becomes of them."""
    messages = [OutgoingMessage(id=f"evt_{number}", body=body) for number, body in enumerate(bodies or ["{}"])]
    found: Queue[RunOutcome] = Queue()
    run = MessageRun(format=WebhookFormat.STANDARD, target=url, secrets=SECRETS, messages=messages)
    notifier.send(run, found.put)
    return found.get(timeout=WAIT_S)


def test_public_library_verifies_what_was_sent_under_each_secret() -> None:
    with receiving() as receiver, notifying() as notifier:
        assert outcome(notifier, receiver.url, '{"n":1}', '{"n":2}') == RunOutcome(sent=2, status=204)
    assert [body for _, body in receiver.requests] == [b'{"n":1}', b'{"n":2}']
    for headers, body in receiver.requests:
        assert {PublicWebhook(each).verify(body, headers)["n"] for each in SECRETS} <= {1, 2}
        assert headers["content-type"] == "application/json"
    assert [headers["webhook-id"] for headers, _ in receiver.requests] == ["evt_0", "evt_1"]


def test_run_stops_at_the_first_failure() -> None:
    with receiving() as receiver, notifying() as notifier:
        receiver.status = 503
        found = outcome(notifier, receiver.url, "{}", "{}")
        receiver.status = 410
        gone = outcome(notifier, receiver.url)
    assert found.failure is not None
    assert (found.sent, found.failure.status, found.failure.gone) == (0, 503, False)
    assert gone.failure is not None
    assert gone.failure.gone
    assert len(receiver.requests) == 2


def test_redirect_is_not_followed() -> None:
    with receiving() as receiver, receiving() as other, notifying() as notifier:
        receiver.status, receiver.location = 307, other.url
        found = outcome(notifier, receiver.url)
    assert found.failure is not None
    assert found.failure.message == "the target answered 307 (redirects are not followed)"
    assert other.requests == []


def test_name_that_moves_to_a_private_address_is_not_connected_to() -> None:
    with receiving() as receiver, notifying(AddressRule(lookup=lambda host, port: ["127.0.0.1"])) as notifier:
        port = httpx.URL(receiver.url).port
        found = outcome(notifier, f"https://moved.example:{port}/hook")
    assert found.failure is not None
    assert found.failure.message == "moved.example is no public address"
    assert receiver.requests == []


def test_connection_goes_to_the_judged_address_and_to_no_later_answer() -> None:
    asked = []

    def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    rule = AddressRule(own_networks=THIS_MACHINE.own_networks, lookup=lookup)
    with receiving() as receiver, notifying(rule) as notifier:
        url = receiver.url.replace("127.0.0.1", "nowhere.invalid")
        assert outcome(notifier, url).sent == 1
    assert asked == ["nowhere.invalid"]
    assert receiver.requests[0][0]["host"].startswith("nowhere.invalid:")


def test_target_that_drips_its_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, notifying(timeout_s=0.3) as notifier:
        ended = threading.Event()
        thread = threading.Thread(target=_drip, args=(server, ended))
        thread.start()
        found = outcome(notifier, f"http://127.0.0.1:{server.getsockname()[1]}/")
        ended.set()
        thread.join()
    assert found.failure is not None
    assert found.failure.message == "no answer came within 0.3 s"


def _drip(server: socket.socket, ended: threading.Event) -> None:
    """Send another byte of an endless header every now and then, always in time for a timeout between bytes."""
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not ended.wait(0.02):
            try:
                connection.sendall(b"x")
            except OSError:
                return


def test_targets_that_hang_delay_no_other() -> None:
    class Hanging(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if "hang" in request.headers["host"]:
                await asyncio.Event().wait()
            return httpx.Response(200)

    rule = AddressRule(lookup=lambda host, port: ["93.184.216.34"])
    with notifying(rule, transport=Hanging()) as notifier:
        before = notifier.room
        run = MessageRun(
            format=WebhookFormat.SLACK,
            target="https://hang.example/",
            secrets=(),
            messages=[OutgoingMessage(id="evt_1", body="{}")],
        )
        for _ in range(200):
            notifier.send(run, lambda _: None)
        assert outcome(notifier, "https://fine.example/") == RunOutcome(sent=1, status=200)
        assert notifier.room <= before - 200
        began_s = time.monotonic()
    assert time.monotonic() - began_s < WAIT_S  # closing waits for no target


def test_targets_that_hang_cost_other_messages_no_work() -> None:
    """The steps of the HTTP client, counted: a pool would look at each connection that hangs."""
    assert _steps_of_message(hanging=20) == _steps_of_message(hanging=0) > 0


def _steps_of_message(*, hanging: int) -> int:
    """How many functions of httpx and httpcore one message to a target that answers calls."""
    steps = Counter[str]()

    def count(frame: FrameType, event: str, _: object) -> None:
        steps[event] += "httpcore" in frame.f_code.co_filename or "httpx" in frame.f_code.co_filename

    with receiving() as receiver, socket.create_server(("127.0.0.1", 0), backlog=64) as mute:
        threading.setprofile(count)  # for the notifier's thread
        try:
            with notifying() as notifier:
                url = f"http://127.0.0.1:{mute.getsockname()[1]}/"
                run = MessageRun(
                    format=WebhookFormat.SLACK,
                    target=url,
                    secrets=(),
                    messages=[OutgoingMessage(id="evt_1", body="{}")],
                )
                for _ in range(hanging):
                    notifier.send(run, lambda _: None)
                taken = [mute.accept()[0] for _ in range(hanging)]
                heads = [each.recv(4096) for each in taken]  # each waits for the answer from now on
                assert all(heads)
                assert outcome(notifier, receiver.url).sent == 1  # meanwhile each of the others has begun to wait
                before = steps["call"]
                assert outcome(notifier, receiver.url).sent == 1
                used = steps["call"] - before
                for each in taken:
                    each.close()
        finally:
            threading.setprofile(None)
    return used


@pytest.mark.parametrize(
    ("url", "messages"),
    [
        ("nonsense", ["is not an https URL"]),
        ("https://me:secret@hooks.example/#x", ["holds a user or a password", "has a fragment, which is never sent"]),
        ("https://127.0.0.1/", ["127.0.0.1 is no public address"]),
        ("http://hooks.example/", ["http://hooks.example is not asked: only https:// is"]),
        ("https://nowhere.invalid/", ["nowhere.invalid cannot be looked up"]),
    ],
)
def test_target_is_checked_when_it_is_saved(url: str, messages: list[str]) -> None:
    def lookup(host: str, port: int) -> list[str]:
        if host.endswith(".invalid"):
            raise socket.gaierror
        return ["93.184.216.34" if host.endswith("example") else host]

    with notifying(AddressRule(lookup=lookup)) as notifier, pytest.raises(InvalidInput) as refusal:
        notifier.check(WebhookFormat.STANDARD, url, where="target")
    assert [each.message for each in refusal.value.faults] == messages
    assert {each.where for each in refusal.value.faults} == {"target"}


def test_mail_is_refused_where_no_mail_server_is_set() -> None:
    with notifying() as notifier, pytest.raises(InvalidInput, match="sends no mail"):
        notifier.check(WebhookFormat.MAIL, "me@example.org", where="target")
