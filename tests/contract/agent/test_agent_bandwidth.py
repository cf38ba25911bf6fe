"""The speed of a link to storage, by a clock that only bytes move."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from giornata.agent.machine.bandwidth import BandwidthProbe
from giornata.domain.files.transfers import MIN_PROBE_BYTES, probe_sha256
from giornata.protocol.node.node_checks import ProbeUpload
from giornata.protocol.uploads import Download, SignedUrl


class LinkClock:
    """Passes only when bytes go over the link, at the link's speed; a burst may be in the way at first."""

    def __init__(self, bytes_per_s: float, *, burst_s: float = 0.0) -> None:
        self.now_s, self.bytes_per_s, self.burst_s = 0.0, bytes_per_s, burst_s

    def __call__(self) -> float:
        return self.now_s

    def pass_for(self, count: int) -> None:
        self.now_s += count / self.bytes_per_s + self.burst_s
        self.burst_s = 0.0


class LinkedStorage:
    """A storage at the other end of a link."""

    def __init__(self, clock: LinkClock, *, broken: Exception | None = None) -> None:
        self.clock, self.broken, self.transfers, self.moved = clock, broken, 0, 0

    def download(self, what: Download, path: Path, *, progress: Callable[[int], None]) -> None:
        path.write_bytes(b"")
        self._move(what.size_bytes, progress)

    def upload(self, path: Path, ticket: Any, *, renew: Any, progress: Callable[[int], None]) -> tuple[str, ...]:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == ticket.sha256
        self._move(path.stat().st_size, progress)
        return ()

    def _move(self, size: int, progress: Callable[[int], None]) -> None:
        self.transfers, self.moved = self.transfers + 1, 0
        if self.broken is not None:
            raise self.broken
        for count in range(2**16, size + 1, 2**16):
            self.clock.pass_for(2**16)
            self.moved = count
            progress(count)


def signed(method: str) -> SignedUrl:
    return SignedUrl(method=method, url="http://x", expires_at=datetime(2026, 5, 1, 12, 0, tzinfo=UTC))


DOWN = Download(sha256=probe_sha256(MIN_PROBE_BYTES), size_bytes=MIN_PROBE_BYTES, request=signed("GET"))
UP = ProbeUpload(sha256=probe_sha256(MIN_PROBE_BYTES), size_bytes=MIN_PROBE_BYTES, request=signed("PUT"))
WANTED = MIN_PROBE_BYTES / 4


def rates(line: LinkedStorage, tmp_path: Path) -> list[float | None]:
    links = BandwidthProbe(line, tmp_path, monotonic_s=line.clock)
    found = [links.download_bytes_per_s(DOWN, wanted=WANTED), links.upload_bytes_per_s(UP, wanted=WANTED)]
    assert list(tmp_path.iterdir()) == []
    return found


@pytest.mark.parametrize("bytes_per_s", [WANTED, 20 * WANTED, WANTED / 2])
def test_the_speed_of_a_link_is_measured(bytes_per_s: float, tmp_path: Path) -> None:
    line = LinkedStorage(LinkClock(bytes_per_s))
    assert rates(line, tmp_path) == [pytest.approx(bytes_per_s, rel=0.01)] * 2
    assert line.transfers == (2 if bytes_per_s >= WANTED else 4)  # one that is fast enough suffices


def test_bandwidth_probe_ignores_one_burst_of_other_traffic(tmp_path: Path) -> None:
    line = LinkedStorage(LinkClock(2 * WANTED, burst_s=6.0))
    found = BandwidthProbe(line, tmp_path, monotonic_s=line.clock).download_bytes_per_s(DOWN, wanted=WANTED)
    assert found == pytest.approx(2 * WANTED, rel=0.01)


def test_bandwidth_probe_takes_better_of_two_tries(tmp_path: Path) -> None:
    clock = LinkClock(WANTED / 2)

    class Tiring(LinkedStorage):
        def download(self, what: Download, path: Path, *, progress: Callable[[int], None]) -> None:
            super().download(what, path, progress=progress)
            clock.bytes_per_s /= 2

    found = BandwidthProbe(Tiring(clock), tmp_path, monotonic_s=clock).download_bytes_per_s(DOWN, wanted=WANTED)
    assert found == pytest.approx(WANTED / 2, rel=0.01)


def test_a_hopeless_link_is_not_waited_for(tmp_path: Path) -> None:
    line = LinkedStorage(LinkClock(WANTED / 1000))
    found = BandwidthProbe(line, tmp_path, monotonic_s=line.clock).download_bytes_per_s(DOWN, wanted=WANTED)
    assert found == pytest.approx(WANTED / 1000, rel=0.01)
    assert line.moved < MIN_PROBE_BYTES / 2


def test_a_storage_that_is_away_measures_nothing(tmp_path: Path) -> None:
    assert rates(LinkedStorage(LinkClock(1.0), broken=OSError("away")), tmp_path) == [None, None]
