"""Writes the checkpoints of one attempt, while its steps go on."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from giornata.diffusion.adapter.lora import Adapters
from giornata.diffusion.draws.determinism import Fingerprint
from giornata.diffusion.families import Family
from giornata.diffusion.files.checkpoint import (
    ADAPTER,
    Header,
    TensorSnapshot,
    read_checkpoint,
    spec_sha256,
    told_spec,
    write_checkpoint,
)
from giornata.diffusion.files.model_card import hashes_of
from giornata.diffusion.optim.optimizer import JobOptimizer
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import Clock, Reporter
from giornata.workloads.train.device.compiling import KERNELS, Kernels
from giornata.workloads.train.results.sampling import Album, taken_up, to_keep
from giornata.workloads.train.results.step_metrics import diverged
from giornata.workloads.train.results.tracking import LOSSES, VALIDATED, losses_before, losses_to_keep

ON_DISK = 2
"""The agent may still be uploading the one before the newest."""


class CheckpointWriter:
    """A writer of checkpoints that writes, announces and deletes them; one at a time, in a thread of its own.

    `announced` is the step of the last checkpoint that the agent knows of, that of the resume included, and `newest`
    that of the last one that was begun; `losses` are those of all steps so far, and `validated` those
    on held-out pictures; `album` has the small pictures of steps. `history` is that of the checkpoint
    resumed from, empty at a job's start; `changed` adds to it, before the first step too. As a context manager it
    waits for what is being written, whatever happened to the steps meanwhile.
    """

    def __init__(
        self,
        *,
        spec: TrainSpec,
        data_hash: str,
        base_sha256: str,
        history: tuple[dict[str, Any], ...],
        directory: Path,
        reporter: Reporter,
        clock: Clock,
        announced: int | None,
        family: Family,
    ) -> None:
        self.data_hash, self.history, self.announced = data_hash, history, announced
        self._spec = spec
        self._base_sha256, self._family = base_sha256, family
        self._directory, self._reporter, self._clock = directory, reporter, clock
        self.newest = announced
        self.losses: list[float] = []
        self.validated: list[float] = []
        self.album: Album = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[float] | None = None
        self._written: list[Path] = []

    def restore(self, path: Path, step: int, adapters: Adapters, optimizer: JobOptimizer) -> None:
        """Load weights, optimizer state, losses and sample images of the checkpoint of `step`. Raises WorkloadFailed
        as `read_checkpoint`."""
        checkpoint = read_checkpoint(
            path,
            step=step,
            spec=self._spec,
            data_hash=self.data_hash,
            wanted=state_of(adapters, optimizer) | losses_before(self._spec, step),
            welcome=to_keep({}, self._spec, step),
        )
        tensors = checkpoint.tensors
        adapters.load({name: tensors[ADAPTER + name] for name in adapters.parameters})
        optimizer.restore(step, tensors)
        self.losses += tensors[LOSSES].tolist() if LOSSES in tensors else []
        self.validated += tensors[VALIDATED].tolist() if VALIDATED in tensors else []
        self.album |= taken_up(tensors, self._spec)

    def write(self, step: int, adapters: Adapters, optimizer: JobOptimizer) -> float:
        """Begin to write the state after `step` steps; returns for how many seconds that held the steps up.

        It is announced once it is durable. Raises what became of the one before, see `settle`.
        """
        began_s = self._clock()
        self.settle()
        logs = losses_to_keep(self._spec, self.losses, self.validated) | to_keep(self.album, self._spec, step)
        snapshot = TensorSnapshot(state_of(adapters, optimizer) | logs)
        held_up_s = self._clock() - began_s
        self.newest = step
        self._writing = self._thread.submit(self._write, self._header(step), snapshot, held_up_s)
        return held_up_s

    def settle(self) -> float | None:
        """Wait for the checkpoint that is being written, if one is; returns how many seconds it took to write.

        Raises WorkloadFailed(BAD_SPEC) if its values were not finite: no attempt could resume there. Raises OSError
        and SafetensorError as the disk does.
        """
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    def look(self) -> float | None:
        """Settle the checkpoint as `settle` does, but return None rather than wait."""
        return self.settle() if self._writing is not None and self._writing.done() else None

    @property
    def origin(self) -> dict[str, str]:
        """Return the hashes of the job's inputs."""
        return hashes_of(self._spec, data_sha256=self.data_hash, base_sha256=self._base_sha256)

    @property
    def fingerprint(self) -> Fingerprint:
        """Return the conditions that the bits depend on now; empty before `changed` has recorded any."""
        return _last(self.history)

    def changed(self, from_step: int, fingerprint: Fingerprint, *, micro: int = 0, last_counts: bool = False) -> None:
        """Record that bits depend on this fingerprint from step `from_step` on, after `micro` of its micro-batches.
        With `last_counts` an entry of the same step is forgotten: what was computed under it was thrown away."""
        forgotten = last_counts and bool(self.history) and self.history[-1]["from_step"] == from_step
        kept = self.history[:-1] if forgotten else self.history
        if fingerprint != _last(kept):
            within = {"micro": micro} if micro else {}
            kept = (*kept, {"from_step": from_step, **within, "fingerprint": fingerprint})
        self.history = kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()
        if error is None:
            self.settle()

    def _write(self, header: Header, snapshot: TensorSnapshot, held_up_s: float) -> float:
        step, began_s = header.step, self._clock()
        tensors = snapshot.tensors()
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise diverged(self._spec, step, "the weights are no longer finite")
        path = self._directory / f"checkpoint-{step:08d}.safetensors"
        write_checkpoint(path, header, tensors)
        self._reporter.checkpoint(step, path, held_up_s)
        self.announced = step
        self._written.append(path)
        while len(self._written) > ON_DISK:
            self._written.pop(0).unlink(missing_ok=True)
        return self._clock() - began_s

    def _header(self, step: int) -> Header:
        return Header(
            step=step,
            spec=told_spec(self._spec),
            spec_sha256=spec_sha256(self._spec),
            data_sha256=self.data_hash,
            base_sha256=self._base_sha256,
            fingerprint=self.fingerprint,
            history=self.history,
            family=self._family.name,
        )


def _last(history: tuple[dict[str, Any], ...]) -> Fingerprint:
    found: Fingerprint = history[-1]["fingerprint"] if history else {}
    return found


def state_of(adapters: Adapters, optimizer: JobOptimizer) -> dict[str, torch.Tensor]:
    """Return everything that the next step depends on besides its number: the tensors themselves, where they are."""
    weights = {ADAPTER + name: parameter.detach() for name, parameter in adapters.parameters.items()}
    return weights | optimizer.state()


def begin_again(optimizer: JobOptimizer, writer: CheckpointWriter, kernels: Kernels, first_step: int) -> None:
    """Go back to before the attempt's first step, which failed before its update, and go on from there without
    kernels."""
    optimizer.forget_gradients()
    without = {name: value for name, value in writer.fingerprint.items() if name != KERNELS}
    writer.changed(first_step, without | kernels.entry, last_counts=True)
