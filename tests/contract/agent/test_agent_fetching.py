"""How long a node waits for bytes that come in slowly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.agent.fake_node_api import FakeNodeApi
from tests.contract.agent.test_agent_parts import SleepClock, calls, held, node_client

from giornata.agent.attempt.events import AttemptFailed
from giornata.agent.transfer.blob_cache import BlobCache
from giornata.agent.transfer.fetching import LEAST_BYTES_PER_S, Fetching
from giornata.agent.transfer.model_store import ModelStore
from giornata.agent.work_dir import JobDir
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import LeaseInput
from giornata.protocol.uploads import Download

SIZE = 100 * 2**20
PATIENCE_S = 600.0


class PiecewiseStorage:
    """Brings a file piece by piece; the clock passes meanwhile."""

    def __init__(self, clock: SleepClock, bytes_per_s: float) -> None:
        self.clock, self.bytes_per_s, self.received = clock, bytes_per_s, 0

    def download(
        self, what: Download, path: Path, *, progress: Callable[[int], None], part: Path | None = None
    ) -> None:
        for count in range(2**20, what.size_bytes + 1, 2**20):
            self.clock.now_s += 2**20 / self.bytes_per_s
            self.received = count
            progress(count)
        path.write_bytes(b"")


def fetching_from(
    storage: Any, api: FakeNodeApi, clock: SleepClock, tmp_path: Path, *, store_bytes: int = 0
) -> Fetching:
    lease = held(clock)
    return Fetching(
        node=node_client(api),
        calls=calls(clock, lease),
        storage=storage,
        cache=BlobCache(tmp_path / "cache", max_bytes=0),
        models=ModelStore(tmp_path / "models", max_bytes=store_bytes),
        monotonic_s=clock,
        patience_s=PATIENCE_S,
        check=lambda: lease.renewed(sent_at_s=clock(), lease_s=30.0),  # as the heart does
    )


def fetch(api: FakeNodeApi, clock: SleepClock, tmp_path: Path, bytes_per_s: float) -> PiecewiseStorage:
    storage = PiecewiseStorage(clock, bytes_per_s)
    room = JobDir(inputs=tmp_path, work=tmp_path, outbox=tmp_path, cache=tmp_path)
    fetching = fetching_from(storage, api, clock, tmp_path)
    what = Download.model_validate(api.add_blob(b"x")).model_copy(update={"size_bytes": SIZE})
    fetching.inputs((LeaseInput(role="instance", name="a.png", caption=None, download=what),), room)
    return storage


def test_a_slow_file_that_comes_is_waited_for(api: FakeNodeApi, tmp_path: Path) -> None:
    clock = SleepClock()
    began_s = clock()
    fetch(api, clock, tmp_path, LEAST_BYTES_PER_S)
    assert clock() - began_s > PATIENCE_S


def test_a_file_that_will_never_be_there_is_not(api: FakeNodeApi, tmp_path: Path) -> None:
    clock = SleepClock()
    began_s = clock()
    with pytest.raises(AttemptFailed) as failed:
        fetch(api, clock, tmp_path, LEAST_BYTES_PER_S / 20)
    assert failed.value.reason is Reason.NODE_DOWNLOAD
    assert f"of {SIZE} bytes have come in" in failed.value.message
    assert clock() - began_s < PATIENCE_S + SIZE / LEAST_BYTES_PER_S + 1000


class QuickStorage:
    """Brings the bytes at once, by way of the part."""

    def __init__(self, body: bytes) -> None:
        self.body, self.asked = body, 0

    def download(self, what: Download, path: Path, *, progress: Callable[[int], None], part: Path) -> None:
        self.asked += 1
        part.write_bytes(self.body)
        progress(len(self.body))
        part.replace(path)


def test_a_model_is_fetched_into_the_store_of_the_machine_and_held(api: FakeNodeApi, tmp_path: Path) -> None:
    storage, what = QuickStorage(b"weights"), Download.model_validate(api.add_blob(b"weights"))
    fetching = fetching_from(storage, api, SleepClock(), tmp_path, store_bytes=100)
    with fetching.model("my-base", what) as first, fetching.model("my-base", what) as second:
        assert first.path == second.path == tmp_path / "models" / what.sha256
        assert first.path.read_bytes() == b"weights"
    assert storage.asked == 1


def test_a_model_without_room_fails_the_attempt_by_its_name_as_the_disks_fault(
    api: FakeNodeApi, tmp_path: Path
) -> None:
    what = Download.model_validate(api.add_blob(b"weights"))
    with pytest.raises(AttemptFailed) as failed:
        fetching_from(QuickStorage(b"weights"), api, SleepClock(), tmp_path, store_bytes=3).model("my-base", what)
    assert failed.value.reason is Reason.NODE_DISK
    assert "my-base: OSError" in failed.value.message and "this node keeps 3 bytes" in failed.value.message
