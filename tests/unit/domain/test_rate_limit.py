"""The token bucket: so many a second, and no more than a second's worth at once; also of several servers together."""

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from giornata.control.memory.request_rates import ACTIVE_MS, FRESH_MS, MOST_COUNTS, RequestRates
from giornata.domain.rate_limit import ServerCounts

NAME = ("project", "art")
TOLD_MS = 1_000


@dataclass(kw_only=True)
class ServersTogether:
    """So many servers whose counts lie on one board, in place of the table. `passed` are instants of requests."""

    number: int
    at_ms: int = 0
    passed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rates = [RequestRates() for _ in range(self.number)]
        self.board: dict[str, ServerCounts] = {}

    def ask(self, server: int, rate: int, times: int = 1) -> int:
        """So many requests at one server; the number that was let through."""
        found = [self.rates[server].take({NAME: rate}, at_ms=self.at_ms).wait_s == 0 for _ in range(times)]
        self.passed += [self.at_ms] * sum(found)
        return sum(found)

    def exchange(self, server: int) -> None:
        """A turn of the loop of one server."""
        rates = self.rates[server]
        counts = rates.counts(at_ms=self.at_ms)
        if not counts:
            self.board.pop(str(server), None)
            rates.end_exchange()
            return
        self.board[str(server)] = ServerCounts(at_ms=self.at_ms, counts=counts)
        rates.settle({name: told for name, told in self.board.items() if name != str(server)}, at_ms=self.at_ms)

    def remaining(self, server: int, rate: int) -> int:
        """The tokens that a server sees, but for the one of this question."""
        return self.rates[server].take({NAME: rate}, at_ms=self.at_ms).remaining


@given(rate=st.integers(1, 20), gaps_ms=st.lists(st.integers(0, 400), max_size=200))
def test_no_stretch_of_time_lets_more_through_than_rate_and_burst(rate: int, gaps_ms: list[int]) -> None:
    rates, at_ms, passed = RequestRates(), 0, list[int]()
    for gap in gaps_ms:
        at_ms += gap
        if rates.take({NAME: rate}, at_ms=at_ms).wait_s == 0:
            passed.append(at_ms)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= rate + (passed[last] - passed[first]) * rate / 1000 + 1e-6


@given(rate=st.integers(1, 20))
def test_request_after_the_told_wait_is_admitted(rate: int) -> None:
    rates = RequestRates()
    for _ in range(rate):
        assert rates.take({NAME: rate}, at_ms=0).wait_s == 0
    standing = rates.take({NAME: rate}, at_ms=0)
    assert (standing.remaining, standing.wait_s > 0) == (0, True)
    assert rates.take({NAME: rate}, at_ms=standing.wait_s * 1000).wait_s == 0


def test_refused_request_takes_nothing_from_the_other_bucket() -> None:
    rates, key = RequestRates(), ("caller", "key")
    rates.take({key: 1}, at_ms=0)
    assert rates.take({NAME: 2, key: 1}, at_ms=0).wait_s == 1
    assert rates.take({NAME: 2}, at_ms=0).remaining == 1


def test_clock_that_was_set_back_neither_fills_nor_blocks_for_long() -> None:
    rates = RequestRates()
    assert rates.take({NAME: 1}, at_ms=10_000).wait_s == 0
    assert rates.take({NAME: 1}, at_ms=0).wait_s == 1
    assert rates.take({NAME: 1}, at_ms=1_000).wait_s == 0


def test_new_rate_holds_at_once() -> None:
    rates = RequestRates()
    rates.take({NAME: 1}, at_ms=0)
    assert rates.take({NAME: 5}, at_ms=0).remaining == 4


@given(
    rate=st.integers(1, 20),
    number=st.integers(2, 4),
    steps=st.lists(st.tuples(st.integers(10, 500), st.integers(0, 3), st.integers(0, 40)), max_size=120),
)
@example(rate=10, number=2, steps=[(250, step % 2, 40) for step in range(80)])
@example(rate=3, number=4, steps=[(100, step % 4, 40) for step in range(120)])
def test_servers_together_let_through_the_rate_and_a_bounded_burst(
    rate: int, number: int, steps: list[tuple[int, int, int]]
) -> None:
    """Any stretch of t seconds has at most rate x (t + servers x (1 + W)): W seconds is the age of what is known."""
    servers = ServersTogether(number=number)
    due_ms = [100 * server for server in range(number)]
    for gap_ms, server, times in steps:
        ends_ms = servers.at_ms + gap_ms
        while min(due_ms) <= ends_ms:
            turn = due_ms.index(min(due_ms))
            servers.at_ms = due_ms[turn]
            servers.exchange(turn)
            due_ms[turn] += TOLD_MS
        servers.at_ms = ends_ms
        servers.ask(server % number, rate, times)
    most_at_once = number * rate * (1 + 2 * TOLD_MS / 1000)
    for first, since_ms in enumerate(servers.passed):
        for last in range(first, len(servers.passed)):
            stretch_s = (servers.passed[last] - since_ms) / 1000
            assert last - first + 1 <= rate * stretch_s + most_at_once + 1e-6


def test_two_servers_that_are_asked_too_much_settle_on_one_rate_and_waste_none_of_it() -> None:
    servers, rate = ServersTogether(number=2), 10
    for second in range(40):
        for _ in range(4):
            servers.ask(0, rate, 5)
            servers.ask(1, rate, 5)
            servers.at_ms += 250
        servers.exchange(second % 2)
        servers.exchange(1 - second % 2)
    late = [at_ms for at_ms in servers.passed if at_ms >= 20_000]
    assert 195 <= len(late) <= 205
    assert {at_ms // 1000 for at_ms in late} == set(range(20, 40)), "no second is without a request"


def test_server_that_is_asked_alone_gets_the_whole_rate_beside_others_that_are_asked_little() -> None:
    servers, rate = ServersTogether(number=3), 10
    for _ in range(20):
        servers.ask(1, rate)
        servers.ask(2, rate)
        servers.ask(0, rate, 20)
        servers.at_ms += TOLD_MS
        for server in range(3):
            servers.exchange(server)
    assert len(servers.passed) >= 19 * rate


def test_requests_of_another_server_are_taken_once_however_often_they_are_read() -> None:
    servers = ServersTogether(number=2)
    servers.exchange(0)
    assert servers.ask(1, 10, 4) == 4
    servers.exchange(1)
    assert servers.ask(0, 10) == 1
    for _ in range(3):
        servers.exchange(0)
    assert servers.remaining(0, 10) == 10 - 4 - 2


def test_server_that_starts_takes_one_bucket_at_most_of_what_came_before() -> None:
    servers = ServersTogether(number=2)
    for _ in range(30):
        servers.ask(0, 10, 10)
        servers.at_ms += TOLD_MS
        servers.exchange(0)
    servers.ask(1, 10)
    servers.exchange(1)
    servers.at_ms += TOLD_MS
    assert servers.remaining(1, 10) > 0


def test_server_that_vanishes_leaves_the_rate_to_the_other() -> None:
    servers, rate = ServersTogether(number=2), 10
    for server in (0, 1):
        servers.ask(server, rate, rate)
        servers.exchange(server)
    for _ in range(10):
        servers.at_ms += TOLD_MS
        servers.exchange(0)
    assert servers.ask(0, rate, 20) == rate
    servers.at_ms += TOLD_MS // 2
    assert servers.ask(0, rate, 20) == rate // 2, "no share is left to a server that is gone"


def test_server_without_exchange_counts_alone_and_owes_one_bucket_afterwards() -> None:
    servers, rate = ServersTogether(number=2), 10
    for server in (0, 1, 0):
        servers.ask(server, rate)
        servers.exchange(server)
    servers.at_ms += FRESH_MS + TOLD_MS
    for _ in range(30):
        assert [servers.ask(server, rate, 20) for server in (0, 1)] == [rate, rate]
        servers.at_ms += TOLD_MS
    for server in (0, 1, 0, 1):
        servers.exchange(server)
    servers.at_ms += 2 * TOLD_MS
    for server in (0, 1):
        servers.exchange(server)
    assert servers.ask(0, rate, 20) > 0


def test_outage_of_one_server_takes_one_bucket_at_most_from_the_others() -> None:
    servers, rate = ServersTogether(number=2), 10
    for server in (0, 1, 0, 1):
        servers.ask(server, rate)
        servers.exchange(server)
    for _ in range(30):
        servers.at_ms += TOLD_MS
        servers.ask(1, rate, rate)
        servers.ask(0, rate)
        servers.exchange(0)
    servers.exchange(1)
    servers.exchange(0)
    servers.at_ms += TOLD_MS
    servers.exchange(0)
    assert servers.ask(0, rate) == 1


def test_server_stops_telling_a_minute_after_the_last_request() -> None:
    rates = RequestRates()
    rates.take({NAME: 5}, at_ms=0)
    (count,) = rates.counts(at_ms=ACTIVE_MS - 1).values()
    assert (count.rate_per_s, count.taken) == (5, 1)
    assert rates.counts(at_ms=ACTIVE_MS) == {}
    rates.take({NAME: 5}, at_ms=ACTIVE_MS + 1)
    (later,) = rates.counts(at_ms=ACTIVE_MS + 1).values()
    assert (later.taken, later.since_ms != count.since_ms) == (1, True), "a count that was not told begins anew"


def test_server_tells_of_the_latest_names_only() -> None:
    rates = RequestRates()
    for number in range(MOST_COUNTS + 5):
        rates.take({("project", str(number)): 5}, at_ms=number)
    told = rates.counts(at_ms=MOST_COUNTS + 5)
    assert sorted(int(name) for _, name in told) == list(range(5, MOST_COUNTS + 5))
