"""A run of pre-training in this process, for a benchmark: what the loop is given, without Ray Train."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase, rows_of_phases
from giornata.pretrain.ray_train.worker import FrozenParts, frozen_parts
from giornata.pretrain.training.trainer import TrainingRun
from giornata.protocol.pretraining import PretrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What follows of the configuration alone."""

    config: PretrainConfig
    source: Manifest
    phases: Sequence[RowsOfPhase]
    frozen: FrozenParts
    device: torch.device


def given_by(config: PretrainConfig, device: torch.device) -> Given:
    """Reads the manifest, and opens encoders where the trainer encodes."""
    source = source_manifest(config)
    frozen = frozen_parts(config, source, device)
    return Given(config=config, source=source, phases=rows_of_phases(config, source), frozen=frozen, device=device)


@contextmanager
def run_of(
    given: Given,
    folder: str,
    *,
    clock_s: Callable[[], float],
    report: Callable[[Mapping[str, float]], None],
    **own: Any,
) -> Iterator[TrainingRun]:
    """A run whose storage lies below `folder` as long as the context is open. `own` are other fields of TrainingRun,
    `feeds` among them."""
    with tempfile.TemporaryDirectory(dir=folder) as room:
        yield TrainingRun(
            config=given.config,
            phases=given.phases,
            storage=Storage.at(Path(room) / "run"),
            scratch=Path(room) / "scratch",
            digests={"manifest": given.source.digest, "encoder": given.frozen.digest},
            scaling=given.frozen.scaling,
            empty=given.frozen.empty,
            device=given.device,
            clock_s=clock_s,
            report=report,
            **own,
        )
