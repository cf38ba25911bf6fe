"""What a node tells of its model files, and the hints that it follows."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from giornata.agent.transfer.model_prefetch import ModelPrefetch
from giornata.agent.transfer.model_reports import ModelReport, ModelReports
from giornata.agent.transfer.model_store import ModelStore
from giornata.protocol.node.held_models import HeldTier, PrefetchHint
from giornata.protocol.uploads import Download, SignedUrl

BODY = b"weights"
SHA256 = hashlib.sha256(BODY).hexdigest()
NEVER = datetime(2100, 1, 1, tzinfo=UTC)
WHAT = Download(
    sha256=SHA256,
    size_bytes=len(BODY),
    request=SignedUrl(method="GET", url="http://storage/1", expires_at=NEVER),
)
HINT = PrefetchHint(base_key="base", downloads=(WHAT,))


class HeldStorage:
    """Storage whose transfers wait until the test lets them go; they fail when `broken`."""

    def __init__(self) -> None:
        self.go, self.broken = threading.Event(), False

    def fetch(self, what: Download, part: Path, target: Path, progress: Callable[[int], None]) -> None:
        assert self.go.wait(30)
        if self.broken:
            raise OSError("the link is down")
        part.write_bytes(BODY)
        progress(len(BODY))
        part.replace(target)


@pytest.fixture
def storage() -> HeldStorage:
    return HeldStorage()


@pytest.fixture
def prefetch(storage: HeldStorage, tmp_path: Path) -> Iterator[ModelPrefetch]:
    made = ModelPrefetch(ModelStore(tmp_path, max_bytes=10**6), storage.fetch)
    made.start()
    yield made
    storage.go.set()
    made.stop(wait_s=30)


@pytest.fixture
def reports(prefetch: ModelPrefetch, tmp_path: Path) -> ModelReports:
    return ModelReports(ModelStore(tmp_path, max_bytes=10**6), prefetch)


def files_of(report: ModelReport) -> tuple[str, ...]:
    assert report.held is not None
    return report.held.added.get(HeldTier.DISK, ())


def test_everything_is_told_until_the_server_knows_and_then_only_changes(reports, tmp_path):
    first = reports.report()
    assert (first.held.since, files_of(first), first.fetching) == (None, (), None)
    reports.answered(known_version=first.held_version, hint=None)
    assert reports.report().held is None
    (tmp_path / SHA256).write_bytes(BODY)
    second = reports.report()
    assert (second.held.since, files_of(second)) == (first.held_version, (SHA256,))
    assert second.held_version > first.held_version


def test_server_that_has_forgotten_the_node_is_told_everything(reports, tmp_path):
    (tmp_path / SHA256).write_bytes(BODY)
    reports.answered(known_version=reports.report().held_version, hint=None)
    reports.answered(known_version=None, hint=None)
    again = reports.report()
    assert (again.held.since, files_of(again)) == (None, (SHA256,))


def test_hint_is_fetched_and_told_first_as_coming_and_then_as_held(reports, prefetch, storage):
    reports.answered(known_version=reports.report().held_version, hint=HINT)
    assert (reports.report().fetching, reports.report().held) == ("base", None)
    storage.go.set()
    assert prefetch.wait_idle(30)
    report = reports.report()
    assert (report.fetching, files_of(report)) == (None, (SHA256,))


def test_damage_is_told_until_the_server_has_answered(reports, tmp_path):
    store = reports._store
    (tmp_path / SHA256).write_bytes(b"WEIGHTS")
    assert store.discard_if_damaged(SHA256)
    assert [reports.report().damaged for _ in range(2)] == [(SHA256,), (SHA256,)]
    reports.answered(known_version=None, hint=None)
    assert reports.report().damaged == ()


@pytest.mark.parametrize("kept", [BODY, b"WEIGHTS"])
def test_file_that_was_damaged_elsewhere_is_read_again_before_its_next_use(reports, storage, tmp_path, kept):
    (tmp_path / SHA256).write_bytes(kept)
    reports.answered(known_version=None, hint=None, verify=(SHA256,))
    storage.go.set()
    with reports._store.hold(WHAT, storage.fetch) as held:
        assert held.path.read_bytes() == BODY
    assert reports.report().damaged == (() if kept == BODY else (SHA256,))
    (tmp_path / SHA256).write_bytes(b"WEIGHTS")
    with reports._store.hold(WHAT, storage.fetch) as held:
        assert held.path.read_bytes() == b"WEIGHTS", "it is read again once"


def test_hint_that_could_not_be_fetched_is_told_as_neither_coming_nor_held(reports, prefetch, storage):
    storage.broken = True
    reports.answered(known_version=reports.report().held_version, hint=HINT)
    storage.go.set()
    assert prefetch.wait_idle(30)
    assert (reports.report().fetching, reports.report().held) == (None, None)


def test_seconds_until_a_hinted_model_is_here_follow_from_the_bytes_that_came(tmp_path):
    half, go, now_s = threading.Event(), threading.Event(), iter((10.0, 14.0))

    def fetch(what: Download, part: Path, target: Path, progress: Callable[[int], None]) -> None:
        progress(1)
        progress(3)
        half.set()
        assert go.wait(30)
        raise OSError("the rest does not matter")

    store = ModelStore(tmp_path, max_bytes=10**6)
    prefetch = ModelPrefetch(store, fetch, monotonic_s=lambda: next(now_s))
    reports = ModelReports(store, prefetch)
    assert reports.report().fetching_left_s is None
    reports.answered(known_version=None, hint=HINT)
    prefetch.start()
    assert half.wait(30)
    assert reports.report().fetching_left_s == (len(BODY) - 3) * 2.0
    go.set()
    assert prefetch.wait_idle(30)
    assert reports.report().fetching_left_s is None
    prefetch.stop(wait_s=30)


def test_files_in_host_memory_are_told_as_changes_in_a_tier_of_their_own(reports, tmp_path):
    (tmp_path / SHA256).write_bytes(BODY)
    first = reports.report([SHA256])
    assert first.held.added == {HeldTier.HOST: (SHA256,), HeldTier.DISK: (SHA256,)}
    reports.answered(known_version=first.held_version, hint=None)
    assert reports.report([SHA256]).held is None
    second = reports.report()
    assert (second.held.since, second.held.removed) == (first.held_version, {HeldTier.HOST: (SHA256,)})
