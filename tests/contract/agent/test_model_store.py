"""Model files on a machine: fetched once, verified, bounded, whatever the source and other processes do."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from tests.fixtures.file_source import FileSource, HastyTransport, Lie, file_source

from giornata.agent.transfer.model_prefetch import ModelPrefetch
from giornata.agent.transfer.model_store import LOCKS, PARTS, ModelStore
from giornata.agent.transfer.transport import HttpStorage
from giornata.client.retry import Backoff
from giornata.domain.errors import BlobMismatch, LeaseLost, Unavailable
from giornata.protocol.uploads import Download, SignedUrl

BODY = os.urandom(200_000)
IN_VAIN = Backoff(retries=0, sleep=lambda _: None)
PATIENT = Backoff(retries=2, sleep=lambda _: None)


@pytest.fixture(scope="module")
def server() -> Iterator[FileSource]:
    with file_source() as source:
        yield source


@pytest.fixture
def source(server: FileSource) -> FileSource:
    server.files, server.lies, server.asked, server.before = {}, [], [], lambda path: None
    return server


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client() as client:
        yield client


@pytest.fixture(scope="module")
def hasty() -> Iterator[httpx.Client]:
    with httpx.Client(transport=HastyTransport()) as client:
        yield client


def offered(source: FileSource, body: bytes, name: str = "/model") -> Download:
    source.files[name] = body
    request = SignedUrl(method="GET", url=source.url + name, expires_at=datetime(2030, 1, 1, tzinfo=UTC))
    return Download(sha256=sha256(body).hexdigest(), size_bytes=len(body), request=request)


def by_http(http: httpx.Client, backoff: Backoff = IN_VAIN):
    storage = HttpStorage(http, backoff=backoff)

    def fetch(what: Download, part: Path, target: Path, progress: Callable[[int], None]) -> None:
        storage.download(what, target, progress=progress, part=part)

    return fetch


def no_fetch(what, part, target, progress):
    raise AssertionError("the file was here")


def parts(store_at: Path) -> list[tuple[str, int]]:
    return sorted((each.name, each.stat().st_size) for each in (store_at / PARTS).iterdir())


def test_held_file_is_fetched_once_and_has_the_bytes(source, http, tmp_path):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    with store.hold(what, by_http(http)) as held:
        assert held.path.read_bytes() == BODY
    with store.hold(what, no_fetch) as again:
        assert again.path == held.path
    assert store.held() == (what.sha256,)
    assert len(source.asked) == 1 and parts(tmp_path) == []


@pytest.mark.parametrize("lie", [Lie(sends=80_000, stalls=True), Lie(sends=80_000)], ids=["stall", "short"])
def test_broken_transfer_leaves_its_bytes_and_the_next_call_goes_on_behind_them(source, http, hasty, tmp_path, lie):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    source.lies = [lie]
    with pytest.raises(Unavailable, match=r"storage"):
        store.hold(what, by_http(hasty if lie.stalls else http))
    ((name, size),) = parts(tmp_path)
    assert name == f"{what.sha256}.{len(BODY)}" and 0 < size <= 80_000
    with ModelStore(tmp_path, max_bytes=10**6).hold(what, by_http(http)) as held:
        assert held.path.read_bytes() == BODY
    assert source.ranges("/model") == [None, f"bytes={size}-"]


def test_source_that_ignores_a_range_is_read_from_the_start(source, http, tmp_path):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    source.lies = [Lie(sends=80_000), Lie(ignores_range=True)]
    with store.hold(what, by_http(http, PATIENT)) as held:
        assert held.path.read_bytes() == BODY


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (Lie(body=BODY + b"more"), f"has {len(BODY) + 4} bytes, not {len(BODY)}"),
        (Lie(body=BODY[:-5]), f"has {len(BODY) - 5} bytes, not {len(BODY)}"),
        (Lie(body=BODY[::-1]), "hash to"),
    ],
    ids=["long", "short", "changed"],
)
def test_source_with_other_bytes_is_refused_and_leaves_nothing(source, http, tmp_path, lie, words):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    source.lies = [lie, lie]
    with pytest.raises(BlobMismatch, match=words):
        store.hold(what, by_http(http))
    assert store.held() == () and parts(tmp_path) == []


def test_wrong_bytes_of_an_earlier_process_are_replaced(source, http, tmp_path):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / f"{what.sha256}.{len(BODY)}").write_bytes(b"x" * 1000)
    with store.hold(what, by_http(http)) as held:
        assert held.path.read_bytes() == BODY


def test_room_is_made_before_the_transfer_and_by_the_longest_unused(source, http, tmp_path):
    store = ModelStore(tmp_path, max_bytes=250)
    old, middle, new = (offered(source, bytes([n]) * 100, f"/{n}") for n in range(3))
    for what in (old, middle):
        store.hold(what, by_http(http)).close()
    store.hold(old, no_fetch).close()
    seen: list[tuple[str, ...]] = []
    source.before = lambda path: seen.append(store.held())
    store.hold(new, by_http(http)).close()
    assert seen == [(old.sha256,)]
    assert set(store.held()) == {old.sha256, new.sha256}


def test_file_in_use_is_never_evicted_and_the_error_says_so(source, http, tmp_path):
    store = ModelStore(tmp_path, max_bytes=150)
    first, second = offered(source, b"a" * 100, "/a"), offered(source, b"b" * 100, "/b")
    held = store.hold(first, by_http(http))
    with pytest.raises(OSError, match="50 bytes are short") as refusal:
        ModelStore(tmp_path, max_bytes=150).hold(second, by_http(http))
    assert refusal.value.errno == errno.ENOSPC and parts(tmp_path) == []
    held.close()
    store.hold(second, by_http(http)).close()
    assert store.held() == (second.sha256,)


def test_file_that_is_larger_than_the_bound_is_refused_and_evicts_nothing(source, http, tmp_path):
    store = ModelStore(tmp_path, max_bytes=150)
    small, large = offered(source, b"a" * 100, "/a"), offered(source, b"b" * 151, "/b")
    store.hold(small, by_http(http)).close()
    with pytest.raises(OSError, match="the file has 151 bytes, and this node keeps 150"):
        store.hold(large, by_http(http))
    assert store.held() == (small.sha256,)


def test_disk_that_others_filled_counts_as_the_bound(source, http, tmp_path):
    store = ModelStore(tmp_path, max_bytes=10**6, free_bytes=lambda _: 60)
    with pytest.raises(OSError, match="40 bytes are short"):
        store.hold(offered(source, b"a" * 100, "/a"), by_http(http))
    assert source.asked == []


def test_half_fetched_file_counts_whole_and_goes_when_nobody_fetches_it(source, http, tmp_path):
    store = ModelStore(tmp_path, max_bytes=300_000)
    what, other = offered(source, BODY), offered(source, BODY[::-1], "/other")
    source.lies = [Lie(sends=80_000)]
    with pytest.raises(Unavailable):
        store.hold(what, by_http(http))
    store.hold(other, by_http(http)).close()
    assert parts(tmp_path) == []
    assert store.held() == (other.sha256,)


def test_two_threads_that_want_one_file_fetch_it_once(source, http, tmp_path):
    store, what = ModelStore(tmp_path, max_bytes=10**6, wait=lambda _: None), offered(source, BODY)
    waits, looks, found = threading.Event(), list[int](), list[bytes]()

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            waits.set()

    def hold_too() -> None:
        with store.hold(what, no_fetch, check=look) as held:
            found.append(held.path.read_bytes())

    second = threading.Thread(target=hold_too)

    def start_second(path: str) -> None:
        """While the first thread fetches."""
        second.start()
        assert waits.wait(20)

    source.before = start_second
    store.hold(what, by_http(http)).close()
    second.join(20)
    assert found == [BODY] and len(source.asked) == 1


FETCHING_PROCESS = """
import sys, httpx, pathlib, datetime
from giornata.agent.transfer.model_store import ModelStore
from giornata.agent.transfer.transport import HttpStorage
from giornata.protocol.uploads import Download, SignedUrl
directory, url, sha256, size = sys.argv[1:]
with httpx.Client() as http:
    storage = HttpStorage(http)
    def fetch(what, part, target, progress):
        storage.download(what, target, progress=progress, part=part)
    request = SignedUrl(method="GET", url=url, expires_at=datetime.datetime.now(datetime.UTC))
    what = Download(sha256=sha256, size_bytes=int(size), request=request)
    with ModelStore(pathlib.Path(directory), max_bytes=10**6).hold(what, fetch) as held:
        print(held.path.stat().st_size)
"""


def test_two_processes_on_one_directory_fetch_a_file_once(source, http, tmp_path):
    what = offered(source, BODY)
    second: list[subprocess.Popen[str]] = []

    def start_second(path: str) -> None:
        """While the first process fetches, and has not got a byte yet."""
        if not second:
            command = [sys.executable, "-c", FETCHING_PROCESS, str(tmp_path), source.url + "/model", what.sha256]
            second.append(
                subprocess.Popen([*command, str(what.size_bytes)], stdout=subprocess.PIPE, text=True, bufsize=1)
            )

    source.before = start_second
    with ModelStore(tmp_path, max_bytes=10**6).hold(what, by_http(http)) as held:
        assert held.path.read_bytes() == BODY
        said, _ = second[0].communicate(timeout=60)
    assert said.strip() == str(len(BODY)) and len(source.asked) == 1


def test_process_that_waits_for_another_one_is_ended_by_its_check(source, http, tmp_path):
    store, what = ModelStore(tmp_path, max_bytes=10**6, wait=lambda _: None), offered(source, BODY)
    looks: list[int] = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise LeaseLost("the attempt has ended")

    def ask_again(path: str) -> None:
        with pytest.raises(LeaseLost):
            store.hold(what, no_fetch, check=check)

    source.before = ask_again
    store.hold(what, by_http(http)).close()
    assert len(looks) == 3


def test_damaged_file_is_removed_and_fetched_again(source, http, tmp_path):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    store.hold(what, by_http(http)).close()
    assert not store.discard_if_damaged(what.sha256)
    (tmp_path / what.sha256).write_bytes(b"x" * len(BODY))
    assert store.discard_if_damaged(what.sha256)
    with store.hold(what, by_http(http)) as held:
        assert held.path.read_bytes() == BODY
    assert not store.discard_if_damaged("0" * 64)


def test_file_that_was_cut_short_is_fetched_again_when_it_is_asked_for(source, http, tmp_path):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    store.hold(what, by_http(http)).close()
    os.truncate(tmp_path / what.sha256, 1000)
    with store.hold(what, by_http(http)) as held:
        assert held.path.read_bytes() == BODY


def test_store_that_nothing_was_put_into_holds_nothing(tmp_path):
    assert ModelStore(tmp_path / "none", max_bytes=1).held() == ()


# ---- hints


def test_hinted_files_are_fetched_in_order_and_ask_nothing_of_those_that_are_here(source, http, tmp_path):
    store = ModelStore(tmp_path, max_bytes=10**6)
    here, first, second = (offered(source, bytes([n]) * 100, f"/{n}") for n in range(3))
    store.hold(here, by_http(http)).close()
    prefetch = ModelPrefetch(store, by_http(http))
    prefetch.hint((first, here, second))
    prefetch.start()
    assert prefetch.wait_idle(20)
    prefetch.stop(wait_s=20)
    assert [path for path, *_ in source.asked] == ["/0", "/1", "/2"]
    assert set(store.held()) == {here.sha256, first.sha256, second.sha256}


def test_hint_takes_no_room_from_files_in_use_and_its_failure_ends_nothing(source, http, tmp_path):
    store = ModelStore(tmp_path, max_bytes=150)
    used, wanted, small = (offered(source, bytes([n]) * (100 if n < 2 else 10), f"/{n}") for n in range(3))
    held = store.hold(used, by_http(http))
    prefetch = ModelPrefetch(store, by_http(http))
    prefetch.hint((wanted, small))
    prefetch.start()
    assert prefetch.wait_idle(20)
    prefetch.stop(wait_s=20)
    assert set(store.held()) == {used.sha256, small.sha256}
    held.close()


def test_hint_that_is_withdrawn_ends_its_fetch_and_keeps_the_bytes(tmp_path, source):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    begun, withdrawn = threading.Event(), threading.Event()

    def fetch(_: Download, part: Path, target: Path, progress: Callable[[int], None]) -> None:
        part.write_bytes(b"half")
        begun.set()
        assert withdrawn.wait(20)
        progress(4)
        raise AssertionError("the transfer went on")

    prefetch = ModelPrefetch(store, fetch)
    prefetch.hint((what,))
    prefetch.start()
    assert begun.wait(20)
    prefetch.hint(())
    withdrawn.set()
    assert prefetch.wait_idle(20)
    prefetch.stop(wait_s=20)
    assert parts(tmp_path) == [(f"{what.sha256}.{len(BODY)}", 4)]


def test_prefetch_pauses_while_a_file_is_fetched_that_is_needed_now(tmp_path, source):
    store = ModelStore(tmp_path, max_bytes=10**6)
    later, now = offered(source, b"l" * 10, "/l"), offered(source, b"n" * 10, "/n")
    order: list[str] = []
    begun, needed = threading.Event(), threading.Event()

    def fetch_later(_: Download, part: Path, target: Path, progress: Callable[[int], None]) -> None:
        begun.set()
        assert needed.wait(20)
        progress(0)
        order.append("later")
        target.write_bytes(b"l" * 10)

    def fetch_now(_: Download, part: Path, target: Path, progress: Callable[[int], None]) -> None:
        needed.set()
        thread.join(0.3)
        order.append("now")
        target.write_bytes(b"n" * 10)

    thread = threading.Thread(target=store.prefetch, args=(later, fetch_later))
    thread.start()
    assert begun.wait(20)
    store.hold(now, fetch_now).close()
    thread.join(20)
    assert order == ["now", "later"]


def test_lock_files_are_all_that_stays_beside_the_models(source, http, tmp_path):
    store, what = ModelStore(tmp_path, max_bytes=10**6), offered(source, BODY)
    store.hold(what, by_http(http)).close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [LOCKS, PARTS, ".space", what.sha256]
