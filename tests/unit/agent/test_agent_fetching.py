"""How long a node waits for bytes that come in slowly."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_node_api import FakeNodeApi
from test_agent_parts import Clock, calls, held, node_client

from giornata.agent.blob_cache import BlobCache
from giornata.agent.events import AttemptFailed
from giornata.agent.fetching import LEAST_BYTES_PER_S, Fetching
from giornata.agent.model_store import ModelStore
from giornata.agent.work_dir import JobDir
from giornata.domain.reasons import Reason
from giornata.protocol.uploads import Download
from giornata.protocol.work import LeaseInput

SIZE = 100 * 2**20
PATIENCE_S = 600.0


class SlowStorage:
    """Brings a file piece by piece; the clock passes meanwhile."""

    def __init__(self, clock: Clock, bytes_per_s: float) -> None:
        self.clock, self.bytes_per_s, self.received = clock, bytes_per_s, 0

    def download(
        self, what: Download, path: Path, *, progress: Callable[[int], None], part: Path | None = None
    ) -> None:
        for count in range(2**20, what.size_bytes + 1, 2**20):
            self.clock.now_s += 2**20 / self.bytes_per_s
            self.received = count
            progress(count)
        path.write_bytes(b"")


def fetch(api: FakeNodeApi, clock: Clock, tmp_path: Path, bytes_per_s: float) -> SlowStorage:
    storage = SlowStorage(clock, bytes_per_s)
    lease = held(clock)
    room = JobDir(inputs=tmp_path, work=tmp_path, outbox=tmp_path, cache=tmp_path)
    fetching = Fetching(
        node=node_client(api),
        calls=calls(clock, lease),
        storage=storage,  # type: ignore[arg-type]
        cache=BlobCache(tmp_path / "cache", max_bytes=0),
        models=ModelStore(tmp_path / "models", max_bytes=0),
        monotonic_s=clock,
        patience_s=PATIENCE_S,
        check=lambda: lease.renewed(sent_at_s=clock(), lease_s=30.0),  # as the heart does
    )
    what = Download.model_validate(api.add_blob(b"x")).model_copy(update={"size_bytes": SIZE})
    fetching.inputs((LeaseInput(role="instance", name="a.png", caption=None, download=what),), room)
    return storage


def test_a_slow_file_that_comes_is_waited_for(api: FakeNodeApi, tmp_path: Path) -> None:
    clock = Clock()
    began_s = clock()
    fetch(api, clock, tmp_path, LEAST_BYTES_PER_S)
    assert clock() - began_s > PATIENCE_S


def test_a_file_that_will_never_be_there_is_not(api: FakeNodeApi, tmp_path: Path) -> None:
    clock = Clock()
    began_s = clock()
    with pytest.raises(AttemptFailed) as failed:
        fetch(api, clock, tmp_path, LEAST_BYTES_PER_S / 20)
    assert failed.value.reason is Reason.NODE_DOWNLOAD
    assert f"of {SIZE} bytes have come in" in failed.value.message
    assert clock() - began_s < PATIENCE_S + SIZE / LEAST_BYTES_PER_S + 1000
