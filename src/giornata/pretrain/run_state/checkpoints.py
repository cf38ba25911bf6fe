"""Writes checkpoints while training goes on, and reads them back, whatever number of trainers there is then.

Tensors are written by torch.distributed.checkpoint as safetensors, each trainer its shards with their places in the
whole: nothing that is read back is ever unpickled. Everything else is JSON. When a checkpoint
exists, giornata.pretrain.run_state.committed says.
"""

import json
import logging
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.ledger import TrainedTwice, Use, UseBits, UseLedger
from giornata.pretrain.run_state.committed import (
    DAMAGED,
    FOLDER,
    STATE,
    CheckpointDamaged,
    CommittedCheckpoint,
    FileFacts,
    commit,
    name_of,
    retire,
)
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
HEADER_LENGTH_BYTES = 8
"""Of the number with which a safetensors file begins: how long its header is."""
MOST_FAILURES = 3
"""Failed writes of checkpoints in a row that end the run. Until a write succeeds, a crash goes back to the last
checkpoint that was written."""


LOST = "lost: "
"""The beginning of a fault that says that another command owns the storage."""


class CheckpointsFail(RuntimeError):
    """MOST_FAILURES checkpoints in a row were not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """Rows that this trainer trained or left out since the last checkpoint."""

    trained: Sequence[Use] = ()
    quarantined: Sequence[Use] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The contents of a checkpoint. `ledger` is brought up to date in the background and gets into `progress`. It is
    None when all phases are done, and at every trainer but the first.

    `alongside` is called by the first trainer before the commit: what it writes belongs to this checkpoint.
    """

    tensors: Mapping[str, torch.Tensor]
    progress: TrainingProgress
    ledger: UseLedger | None
    uses: Uses = Uses()
    alongside: Callable[[], None] = lambda: None


def staging(device: torch.device) -> StagingOptions:
    """The way of tensors from the device to the host's memory. A GPU copies all tensors at once to pinned memory
    while the training waits: from pageable memory each copy would take a detour of its own."""
    pinned = device.type == "cuda"
    return StagingOptions(
        use_pinned_memory=pinned, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=pinned
    )


class Checkpointer:
    """The checkpoints of a run, one written at a time. All trainers make each call at the same place."""

    def __init__(
        self,
        run: Storage,
        scratch: Path,
        *,
        limit: int,
        device: torch.device = CPU,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel, self._fence = Channel(), fence  # used by the thread alone
        self._run, self._limit, self._rank, self._world = run, limit, self._channel.rank, self._channel.world
        self._scratch = scratch / f"trainer-{self._rank}"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pretrain-checkpoint")
        # The host's copies are kept from one checkpoint to the next.
        self._stager = DefaultStager(staging(device))
        self._under_way: Future[None] | None = None
        self._failures = 0
        self.last: tuple[int, int] | None = None
        """(step, phase) of the newest that was written."""

    def begin(self, snapshot: Snapshot) -> None:
        """Copy everything to the host's memory and write it in the background; waits for the checkpoint before.

        Raises what that one raised: TrainedTwice, CheckpointsFail, InvalidInput when the storage has another owner.
        """
        self.wait()
        staged = self._stager.stage({name: _plain(each) for name, each in snapshot.tensors.items()})
        copied = replace(snapshot, tensors=staged, progress=deepcopy(snapshot.progress))
        self._under_way = self._thread.submit(self._write, copied)

    def wait(self) -> None:
        """Wait for the checkpoint under way. Raises what its writing raised."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Give back threads and memory, once nothing is under way."""
        self._thread.shutdown(wait=True)
        self._stager.close()

    def _write(self, snapshot: Snapshot) -> None:
        name = name_of(snapshot.progress.step, snapshot.progress.phase)
        why = self._clean(name)
        # These rows are not handed over again, even when a later step fails.
        record_uses(snapshot.ledger, snapshot.uses, self._channel)
        if snapshot.ledger is not None:
            snapshot.progress.ledgers = [*snapshot.progress.ledgers, snapshot.ledger.to_json()]
        if faults := [fault for fault in self._channel.gather_objects(why) if fault]:
            self._conclude(name, faults, snapshot.progress)
            return
        files = dict[str, FileFacts]()
        try:
            files = self._write_shards(name, snapshot.tensors)
        except (OSError, CheckpointException) as error:
            why = f"trainer {self._rank}: {error}"
        found = self._channel.gather_objects((why, files))
        faults = [fault for fault, _ in found if fault]
        if not faults and self._rank == 0:
            shards = {file: facts for _, each in found for file, facts in each.items()}
            faults = self._commit(name, snapshot, shards)
        self._conclude(name, self._channel.gather_objects(faults)[0], snapshot.progress)

    def _clean(self, name: str) -> str | None:
        """Half of a checkpoint that another attempt began would be read together with ours. By the first trainer,
        before anybody writes."""
        try:
            if self._rank == 0:
                self._fence()
                self._run.remove_all(f"{FOLDER}/{name}")
        except InvalidInput as error:
            return f"{LOST}{error}"
        except OSError as error:
            return f"cleaning up: {error}"
        return None

    def _write_shards(self, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, FileFacts]:
        """Write this trainer's part, first to the local disk and then to the storage."""
        here, there = self._scratch / name, f"{FOLDER}/{name}"
        shutil.rmtree(here, ignore_errors=True)
        try:
            writer = dcp.HuggingFaceStorageWriter(str(here), save_distributed=True)
            dcp.save(
                dict(tensors), storage_writer=writer, process_group=self._channel.group, no_dist=self._world == 1
            )
            files = {path.name: FileFacts.of(path) for path in sorted(here.glob("*.safetensors"))}
            for file in files:
                self._run.put(here / file, f"{there}/{file}")
            return files
        finally:
            shutil.rmtree(here, ignore_errors=True)

    def _commit(self, name: str, snapshot: Snapshot, shards: Mapping[str, FileFacts]) -> list[str]:
        """Commit the checkpoint, on the first trainer, and return the faults."""
        aside = self._scratch / STATE
        try:
            snapshot.alongside()
            aside.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(snapshot.progress.to_json(), sort_keys=True) + "\n", encoding="utf-8")
            self._run.put(aside, f"{FOLDER}/{name}/{STATE}")
            files = {**shards, STATE: FileFacts.of(aside)}
            progress = snapshot.progress
            self._fence()
            commit(self._run, CommittedCheckpoint(name=name, step=progress.step, phase=progress.phase, files=files))
            retire(self._run, limit=self._limit)
        except InvalidInput as error:
            return [f"{LOST}{error}"]
        except OSError as error:
            return [f"commit: {error}"]
        return []

    def _conclude(self, name: str, faults: Sequence[str], progress: TrainingProgress) -> None:
        if lost := [fault.removeprefix(LOST) for fault in faults if fault.startswith(LOST)]:
            raise InvalidInput([Fault(where=name, message=f"is not written: {lost[0]}")])
        if not faults:
            self._failures, self.last = 0, (progress.step, progress.phase)
            return
        self._failures += 1
        log.warning("checkpoint %s of %s was not written: %s", name, self._run, "; ".join(faults))
        if self._failures >= MOST_FAILURES:
            raise CheckpointsFail(f"{self._failures} checkpoints in a row were not written: {'; '.join(faults)}")


def record_uses(ledger: UseLedger | None, mine: Uses, channel: Channel) -> None:
    """Bring the first trainer's ledger up to date with what all trainers did. Called by all trainers; raises
    TrainedTwice on all of them."""
    twice: TrainedTwice | None = None
    try:
        for trained, quarantined in channel.to_first((UseBits.of(mine.trained), UseBits.of(mine.quarantined))):
            if ledger is not None:
                ledger.record(trained, quarantined=quarantined)
    except TrainedTwice as error:
        twice = error
    if (told := channel.gather_objects(twice)[0]) is not None:
        raise told


def load_tensors(
    run: Storage,
    checkpoint: CommittedCheckpoint,
    tensors: Mapping[str, torch.Tensor],
    scratch: Path,
    channel: Channel,
    *,
    node: str = "",
) -> None:
    """Fill the tensors, sharded as they are, from a checkpoint. Called by all trainers.

    Shards that some trainer of this `node` needs are verified by one of them: where they are, which brings them into
    the node's memory, or copied once. Of others only the header is there. Raises CheckpointDamaged, on all of them,
    after marking it.
    """
    there, local = run / f"{FOLDER}/{checkpoint.name}", "://" not in run.address
    names = channel.gather_objects((node, uuid.uuid4().hex))
    neighbors = [rank for rank, (name, _) in enumerate(names) if name == node]
    first = channel.rank == neighbors[0]
    folder = Path(there.path()) if local else scratch / f"load-{names[neighbors[0]][1]}"
    try:
        if not local and first:
            _write_headers(there, checkpoint, folder)
        channel.gather([0])  # the headers are there
        needs = channel.gather_objects((node, _needed(folder, tensors) or checkpoint.shards))
        wanted = sorted({file for name, files in needs if name == node for file in files})
        broken = []
        for file in wanted[neighbors.index(channel.rank) :: len(neighbors)]:
            if not local:
                there.get(file, folder / file)
            if FileFacts.of(folder / file) != checkpoint.files[file]:
                broken.append(file)
        _refuse_broken(run, checkpoint, broken, channel)
        reader = dcp.HuggingFaceStorageReader(str(folder))
        dcp.load(dict(tensors), storage_reader=reader, process_group=channel.group, no_dist=channel.world == 1)
    finally:
        if not local and first:
            shutil.rmtree(folder, ignore_errors=True)


def _refuse_broken(run: Storage, checkpoint: CommittedCheckpoint, broken: Sequence[str], channel: Channel) -> None:
    everybodys = sorted({file for files in channel.gather_objects(broken) for file in files})
    if not everybodys:
        return
    why = f"{', '.join(everybodys)}: not the bytes that were written"
    if channel.rank == 0:
        run.write(f"{FOLDER}/{checkpoint.name}/{DAMAGED}", f"{why}\n".encode())  # no later start uses it
    channel.gather([0])  # nobody looks for another before this one is marked
    raise CheckpointDamaged(f"checkpoint {checkpoint.name} of {run}: {why}")


def _write_headers(there: Storage, checkpoint: CommittedCheckpoint, folder: Path) -> None:
    """Sparse files of the shards' sizes: the names and places of their tensors, and no bytes of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.shards:
        size_bytes = checkpoint.files[file].bytes
        with there.open(file) as stream, (folder / file).open("wb") as sparse:
            length = stream.read(HEADER_LENGTH_BYTES)
            sparse.write(length + stream.read(min(size_bytes, int.from_bytes(length, "little"))))
            sparse.truncate(size_bytes)


def _needed(folder: Path, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The shards from which these tensors are filled; none where a header is broken."""
    try:
        metadata = dcp.HuggingFaceStorageReader(str(folder)).read_metadata()
        planner = dcp.DefaultLoadPlanner()
        planner.set_up_planner(dict(tensors), metadata, is_coordinator=False)
        places = [metadata.storage_data[item.storage_index] for item in planner.create_local_plan().items]
    except (SafetensorError, ValueError, KeyError, RuntimeError):
        return []
    return sorted({Path(place.relative_path).name for place in places})


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as safetensors can write it, which knows one order in memory."""
    return tensor.detach() if isinstance(tensor, DTensor) else tensor.detach().contiguous()
