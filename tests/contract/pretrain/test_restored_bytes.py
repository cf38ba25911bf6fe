"""A restore reads what each trainer needs, and what several trainers of a node need comes to that node once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.pretrain_trainers import run_trainers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.checkpoints import Checkpointer, Snapshot, load_tensors
from giornata.pretrain.run_state.committed import newest
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress

WORLD, NODES, ROWS = 4, 2, 1 << 14
COPIES = {"sharded": 1 / NODES, "replicated": 1.0, "resized": 1.0}
"""What each node reads of the whole. A restore by another number of trainers may need every shard."""


@dataclass(frozen=True, slots=True)
class CountedStorage(Storage):
    """A store that is not a folder; writes down how much is read of it."""

    folder: str = ""
    log: str = ""

    def _read(self, size_bytes: int) -> None:
        with Path(self.log).open("a") as file:
            file.write(f"{size_bytes}\n")

    def get(self, name: str, path: Path) -> None:
        Storage(self.folder, self.below).get(name, path)
        self._read(path.stat().st_size)

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        with Storage(self.folder, self.below).open(name) as stream:
            yield stream
            self._read(stream.tell())


def tensors_of(kind: str, value: float) -> dict[str, torch.Tensor]:
    mesh = init_device_mesh("cpu", (WORLD,))
    placement = Replicate() if kind == "replicated" else Shard(0)
    return {
        f"weight.{place}": distribute_tensor(torch.full((ROWS, 4), value + place), mesh, [placement])
        for place in range(WORLD)
    }


def _save_and_restore(rank: int, top: Path) -> None:
    channel = Channel()
    for kind in COPIES:
        checkpoints = Checkpointer(Storage.at(top / kind), top / "scratch", limit=1)
        checkpoints.begin(Snapshot(tensors=tensors_of(kind, 1.0), progress=TrainingProgress(step=1), ledger=None))
        checkpoints.wait()
        checkpoints.close()
        found = newest(Storage.at(top / kind))
        assert found is not None
        node = rank * NODES // WORLD
        store = CountedStorage("kept://elsewhere", "", str(top / kind), str(top / f"{kind}-{node}"))
        into = tensors_of("replicated" if kind == "resized" else kind, 0.0)
        load_tensors(store, found, into, top / "scratch", channel, node=f"node {node}")
        for place, each in enumerate(into.values()):
            assert isinstance(each, DTensor)
            assert (each.to_local() == 1.0 + place).all()
    channel.gather([0])
    assert not list((top / "scratch").glob("load-*"))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("restored")
    assert run_trainers(_save_and_restore, top, world=WORLD, meeting=top / "meeting")
    return top


@pytest.mark.parametrize("kind", COPIES)
def test_a_node_reads_the_shards_that_its_trainers_need_once(read: Path, kind: str) -> None:
    found = newest(Storage.at(read / kind))
    assert found is not None
    whole = sum(facts.bytes for name, facts in found.files.items() if name.endswith(".safetensors"))
    for node in range(NODES):
        bytes_read = sum(map(int, (read / f"{kind}-{node}").read_text().split()))
        assert COPIES[kind] * whole <= bytes_read <= COPIES[kind] * whole * 1.02, "headers come on top"
