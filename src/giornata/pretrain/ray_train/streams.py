"""Streams of rows for the trainers, from the remaining rows, whenever the trainers start.

Ray Train calls `Remaining` for the data set of a phase when it starts a group of trainers, and `Streams` for each
trainer's part. Ray's own split would cut rows off until all parts are equal; here every row reaches a trainer, and
the loop waits for no stream that has ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.data import DataIterator, Dataset
from ray.train import DataConfig

from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.feeding.graph import fed
from giornata.pretrain.feeding.rows_of_phase import part_of, rows_of_phases
from giornata.pretrain.run_state.run_storage import ledger_of, progress_of, run_storage
from giornata.protocol.pretraining import PretrainConfig
from giornata.protocol.pretraining_checks import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """The data set of one phase: the rows that the ledger of the newest checkpoint lacks.

    `config` is JSON, so that Ray can carry it. With `part`, (rank, world), it has the rows of one trainer in the
    pinned order.
    """

    config: Mapping[str, Any]
    phase: int
    part: tuple[int, int] | None = None

    def __call__(self) -> Dataset:
        config = parse(self.config)
        source = source_manifest(config)
        rows_of = rows_of_phases(config, source)[self.phase]
        portions = ledger_of(progress_of(run_storage(config)), self.phase, rows_of).remaining()
        if self.part is not None:
            (rank, world), batch = self.part, config.train.global_batch_size
            portions = part_of(portions, rows_of, batch=batch, rank=rank, world=world)
        return fed(config, self.phase, rows_of, portions, source=source)


class Streams(DataConfig):
    """A stream for each trainer. With a pinned order each stream is a data set of the trainer's rows.

    Otherwise a trainer receives the next block that is ready."""

    def __init__(self, config: PretrainConfig) -> None:
        super().__init__()
        self._config = config.to_json()

    def configure(
        self,
        datasets: dict[str, Dataset],
        world_size: int,
        worker_handles: list[Any] | None,  # noqa: ARG002  (Ray Train's signature)
        worker_node_ids: list[str] | None,
        **_: Any,
    ) -> list[dict[str, DataIterator]]:
        """Return a stream for each name and trainer, as Ray Train expects."""
        config = parse(self._config)
        parts: list[dict[str, DataIterator]] = [{} for _ in range(world_size)]
        for name, dataset in datasets.items():
            streams = (
                self._pinned(config, name, world_size)
                if config.train.pinned_order
                else self._free(dataset, name, world_size, worker_node_ids)
            )
            for part, stream in zip(parts, streams, strict=True):
                part[name] = stream
        return parts

    def _free(
        self, dataset: Dataset, name: str, world_size: int, worker_node_ids: list[str] | None
    ) -> list[DataIterator]:
        # A block goes to the trainer with the fewest rows: blocks of a step's share keep them equal within one.
        rows = max(1, parse(self._config).train.global_batch_size // world_size)
        dataset = dataset.repartition(target_num_rows_per_block=rows)
        dataset.context.execution_options = self._resolve_execution_options(name)
        return list(dataset.streaming_split(world_size, equal=False, locality_hints=worker_node_ids))

    def _pinned(self, config: PretrainConfig, name: str, world_size: int) -> list[DataIterator]:
        phase = [each.name for each in config.phases].index(name)
        streams = []
        for rank in range(world_size):
            dataset = Remaining(config=self._config, phase=phase, part=(rank, world_size))()
            options = self._resolve_execution_options(name)
            options.preserve_order = True
            dataset.context.execution_options = options
            streams.append(dataset.iterator())
        return streams
