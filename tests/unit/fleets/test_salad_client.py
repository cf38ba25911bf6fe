"""Requests to SaladCloud: their pace, their repeats, and what is made of errors. Each fault has a quiet twin."""

import itertools
from typing import Any

import httpx
import pytest
from tests.fixtures.answering import answering
from tests.fixtures.salad_cloud import API_KEY, PREFIX, SaladCloud
from tests.fixtures.salad_rented import Rented

from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone, InvalidInput
from giornata.fleets.opening import open_driver, read_options
from giornata.fleets.salad import SaladOptions
from giornata.fleets.salad.client import PATIENCE_S, RateLimiter, RetryPauses, SaladClient, rate_limiter_of


@pytest.fixture
def rented() -> Rented:
    return Rented(SaladCloud())


def one(rented: Any) -> Any:
    """A fleet with one running instance."""
    fleet = rented.fleet()
    fleet.desired(1)
    rented.settle()
    rented.waits.clear()
    return fleet


def test_client_does_not_wait_when_calls_succeed(rented):
    fleet = one(rented)
    asked = len(rented.cloud.asked)
    fleet.list()
    assert (rented.waits, len(rented.cloud.asked)) == ([], asked + 3), "groups, instances, and quotas that were due"
    fleet.list()
    assert len(rented.cloud.asked) == asked + 5


@pytest.mark.parametrize("in_words", [False, True])
def test_d48_retry_after_is_waited_for_in_seconds_and_as_a_date(rented, in_words):
    fleet = one(rented)
    said = rented.cloud.http_date(9) if in_words else "9"
    rented.cloud.befalls(429, headers={"Retry-After": said}, only="/instances")
    assert len(fleet.list()) == 1
    assert 9 <= rented.waits[0] <= 10.5
    assert rented.cloud.count("GET", "/instances") >= 2


def test_d48_without_retry_after_pauses_double(rented):
    fleet = one(rented)
    rented.cloud.befalls(429, times=3, only="/instances")
    fleet.list()
    assert [wait for wait in rented.waits if wait] == [0.5, 1.0, 2.0]


def test_d48_a_provider_that_asks_for_much_patience_is_left_alone_and_says_for_how_long(rented):
    fleet = one(rented)
    rented.cloud.befalls(429, headers={"Retry-After": "300"}, only="/instances")
    with pytest.raises(FleetUnavailable) as caught:
        fleet.list()
    assert caught.value.retry_after_s == 300
    assert sum(rented.waits) <= PATIENCE_S
    asked = len(rented.cloud.asked)
    with pytest.raises(FleetUnavailable):
        fleet.desired(2)
    assert len(rented.cloud.asked) == asked, "whoever has the key holds still"
    rented.cloud.advance(301)
    assert len(fleet.list()) == 1


@pytest.mark.parametrize("said", ["9" * 30, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_provider_that_asks_for_patience_without_end_is_asked_again_in_an_hour(rented, said):
    fleet = one(rented)
    rented.cloud.befalls(429, headers={"Retry-After": said}, only="/instances")
    with pytest.raises(FleetUnavailable):
        fleet.list()
    rented.cloud.advance(3601)
    assert len(fleet.list()) == 1


@pytest.mark.parametrize("said", ["", "soon", "-5", "1.5", "٣", "Fri, 99 Foo"])
def test_a_retry_after_that_says_nothing_is_none(rented, said):
    fleet = one(rented)
    rented.cloud.befalls(429, headers={"Retry-After": said.encode("utf-8")}, only="/instances")
    fleet.list()
    assert [wait for wait in rented.waits if wait] == [0.5]


def test_d48_many_requests_stay_below_the_limit_of_the_key(rented):
    fleet = one(rented)
    for _ in range(600):
        fleet.list()
    assert sum(rented.waits) > 150
    assert max(rented.waits) < 1, "never refused, only paced"


def test_the_pace_holds_in_every_minute():
    now_s, sent = [0.0], []

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    rate_limiter = RateLimiter(per_minute=180, burst=20, monotonic_s=lambda: now_s[0], sleep=sleep)
    for _ in range(900):
        rate_limiter.wait()
        sent.append(now_s[0])
    busiest = max(sum(start <= at_s < start + 60 for at_s in sent) for start in sent)
    assert 180 <= busiest <= 200
    now_s[0] += 600
    rate_limiter.wait()
    assert now_s[0] == sent[-1] + 600, "who asks seldom never waits"


def test_two_fleets_with_one_key_share_its_pace():
    same, other = rate_limiter_of("a", per_minute=200), rate_limiter_of("a", per_minute=200)
    assert same is other
    assert rate_limiter_of("b", per_minute=200) is not same
    assert same.per_minute + same.burst <= 200


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520])
def test_pages_of_a_gateway_are_survived(rented, status):
    fleet = one(rented)
    rented.cloud.befalls(status, page=True, times=2, only="/instances")
    assert len(fleet.list()) == 1
    rented.cloud.befalls(status, page=True, times=9, only="/instances")
    with pytest.raises(FleetUnavailable, match="502 Bad Gateway cloudflare") as caught:
        fleet.list()
    assert "<" not in str(caught.value)


def test_a_page_instead_of_a_list_is_no_empty_list(rented):
    fleet = one(rented)
    rented.cloud.befalls(200, page=True, only="/instances")
    assert len(fleet.list()) == 1, "it is asked for again"
    rented.cloud.befalls(200, page=True, times=5, only="/instances")
    with pytest.raises(FleetUnavailable):
        fleet.list()


@pytest.mark.parametrize(
    "body", [{}, {"instances": None}, {"instances": ["a"]}, {"instances": [{"state": "running"}]}, []]
)
def test_a_list_is_whole_or_an_error(rented, body):
    fleet = one(rented)

    def answer(request: httpx.Request) -> httpx.Response:
        broken = request.url.path.endswith("/instances")
        return httpx.Response(200, json=body) if broken else rented.cloud.answer(request)

    fleet.calls.client.http._transport = httpx.MockTransport(answer)
    with pytest.raises(FleetUnavailable):
        fleet.list()


def test_a_key_that_is_wrong_is_refused_at_once_and_never_shown(rented):
    rented.environment["SALAD_API_KEY"] = "another-key"
    fleet = rented.fleet()
    with pytest.raises(FleetRefused, match="403") as caught:
        fleet.desired(1)
    assert rented.waits == []
    assert "another-key" not in str(caught.value) + repr(fleet)


def test_a_provider_that_is_away_is_unavailable_after_some_tries(rented):
    fleet = one(rented)
    with rented.cloud.away(), pytest.raises(FleetUnavailable, match="ConnectError"):
        fleet.list()
    assert 3 <= len([wait for wait in rented.waits if wait]) <= 5
    assert len(fleet.list()) == 1


def test_creating_whose_reply_was_lost_makes_one_group(rented):
    rented.cloud.loses_replies(1, only="/containers", method="POST")
    rented.fleet().desired(2)
    assert (len(rented.cloud.groups), rented.group.replicas) == (1, 2)
    assert rented.cloud.count("POST", "/containers") == 2


@pytest.mark.parametrize(("verb", "nodes", "status"), [("/stop", 0, "stopped"), ("/start", 1, "deploying")])
def test_starting_and_stopping_whose_reply_was_lost_are_done(rented, verb, nodes, status):
    fleet = one(rented)
    if nodes:
        fleet.desired(0)
        rented.settle()
    rented.cloud.loses_replies(1, only=verb)
    fleet.desired(nodes)
    assert rented.group.status == status


def test_starting_that_is_refused_is_an_error(rented):
    fleet = one(rented)
    fleet.desired(0)
    rented.settle()
    rented.cloud.befalls(403, only="/start")
    with pytest.raises(FleetRefused):
        fleet.desired(1)


def test_reallocating_whose_reply_was_lost_is_done_once(rented):
    fleet = one(rented)
    (before,) = fleet.list()
    rented.cloud.loses_replies(1, only="/reallocate")
    fleet.reallocate(before.id, reason="slow")
    assert len(rented.group.excluded) == 1
    with pytest.raises(InstanceGone):
        fleet.reallocate(before.id, reason="slow")


@pytest.mark.parametrize("status", [200, 202])
def test_salad_instance_is_read_from_status_200_or_202(rented, status):
    fleet = one(rented)
    rented.cloud.instance_status = status
    (instance,) = fleet.list()
    answer = fleet.calls.client.ask("GET", fleet.calls.of("loras").instance_path(instance.id))
    assert (answer.status, answer.body["id"]) == (status, instance.id)


def test_the_fake_is_a_real_server_too(rented):
    with answering(rented.cloud.answer) as url, httpx.Client(base_url=url + PREFIX) as http:
        pauses = RetryPauses(sleep=rented.cloud.advance, chance=lambda: 1.0)
        rate_limiter = RateLimiter(per_minute=1000, burst=100)
        client = SaladClient(http=http, api_key=API_KEY, rate_limiter=rate_limiter, pauses=pauses)
        fleet = rented.fleet()
        fleet.calls.client = client
        fleet.desired(1)
        rented.cloud.loses_replies(1, only="/instances")
        assert len(fleet.list()) == 1, "a connection that really drops is tried again"
        with pytest.raises(InstanceGone):
            fleet.reallocate("3b0dd4e2-0b0f-4e3e-9d6f-8f0d4e0e0e0e", reason="x")


def test_salad_options_report_all_faults_at_once(rented):
    driver = open_driver("salad", where="fleets.loras")
    with pytest.raises(InvalidInput) as caught:
        read_options(driver, {"organization": "Acme!", "cpu": 0, "color": "red", "image": "x"}, where="fleets.loras")
    wheres = {fault.where for fault in caught.value.faults}
    assert {f"fleets.loras.{each}" for each in ("organization", "project", "cpu", "gpu_classes", "color")} <= wheres
    rented.environment.clear()
    with pytest.raises(InvalidInput) as caught:
        rented.fleet("Bad Name", registry={"username": "u"})
    assert {fault.where for fault in caught.value.faults} == {
        "fleets.Bad Name.options.group",
        "fleets.Bad Name.options.api_key_variable",
        "fleets.Bad Name.options.registry.password_variable",
    }


def test_a_fleet_is_opened_without_asking_anybody():
    driver = open_driver("salad", where="fleets.loras")
    assert driver.OPTIONS is SaladOptions


def test_prices_come_as_letters_and_leave_as_micro_dollars():
    from giornata.fleets.salad.translation import micro_usd

    assert [micro_usd(price) for price in ("0.324", "$0.20", " 1 ", "0", "0.0000005", 0.1)] == [
        324_000,
        200_000,
        1_000_000,
        0,
        1,
        100_000,
    ]
    for wrong in ("", "free", "-1", "NaN", "Infinity", None):
        with pytest.raises(FleetUnavailable):
            micro_usd(wrong)


def test_pauses_are_never_shorter_than_asked_for_whatever_chance_says(rented):
    fleet = one(rented)
    chances = itertools.cycle([0.0, 0.3, 0.99])
    object.__setattr__(fleet.calls.client, "pauses", RetryPauses(sleep=rented._sleep, chance=lambda: next(chances)))
    rented.cloud.befalls(429, times=3, headers={"Retry-After": "5"}, only="/instances")
    fleet.list()
    assert all(wait >= 5 for wait in rented.waits if wait > 0.5)
