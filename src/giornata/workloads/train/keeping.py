"""Writes the checkpoints of one attempt."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.checkpoint import ADAPTER, Header, spec_sha256, write_checkpoint
from giornata.diffusion.determinism import Fingerprint
from giornata.diffusion.lora import Adapters
from giornata.diffusion.optimizer import AdapterOptimizer
from giornata.engine.workload import Reporter
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.pace import Clock, diverged

ON_DISK = 2
"""The agent may still be uploading the one before the newest."""


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Writes, announces and tidies up. `announced` is the step of the last checkpoint that the agent knows of,
    that of the resume included."""

    spec: TrainSpec
    data_hash: str
    fingerprint: Fingerprint
    history: tuple[dict[str, Any], ...]
    directory: Path
    reporter: Reporter
    clock: Clock
    announced: int | None
    _written: list[Path] = field(default_factory=list)

    def write(self, step: int, adapters: Adapters, optimizer: AdapterOptimizer) -> float:
        """Write the state after `step` steps and announce it once it is durable. Returns what it cost in seconds.

        Raises WorkloadFailed(BAD_SPEC) rather than write values that are not finite: nobody could resume there.
        """
        began_s = self.clock()
        tensors = state_of(adapters, optimizer)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise diverged(self.spec, step, "the weights are no longer finite")
        path = self.directory / f"checkpoint-{step:08d}.safetensors"
        write_checkpoint(path, self._header(step), tensors)
        cost_s = self.clock() - began_s
        self.reporter.checkpoint(step, path, cost_s)
        self.announced = step
        self._written.append(path)
        while len(self._written) > ON_DISK:
            self._written.pop(0).unlink(missing_ok=True)
        return cost_s

    def _header(self, step: int) -> Header:
        return Header(
            step=step,
            spec=self.spec.model_dump(mode="json"),
            spec_sha256=spec_sha256(self.spec),
            data_sha256=self.data_hash,
            fingerprint=self.fingerprint,
            history=self.history,
        )


def state_of(adapters: Adapters, optimizer: AdapterOptimizer) -> dict[str, torch.Tensor]:
    """Everything that the next step depends on besides its number, on the CPU."""
    weights = {ADAPTER + name: tensor for name, tensor in adapters.tensors().items()}
    return weights | {name: moment.cpu() for name, moment in optimizer.state().items()}
