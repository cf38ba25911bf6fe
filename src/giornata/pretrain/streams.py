"""How rows reach the trainers: a stream for each, made anew from what remains whenever the trainers start.

Ray Train asks `Remaining` for the data set of a phase each time that it starts a group of trainers, and `Streams` for
each trainer's part of it. Ray's own split would cut rows off until all parts are equal; here every row is given to
somebody, and the loop takes care of trainers whose stream ends first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.data import DataIterator, Dataset
from ray.train import DataConfig

from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.feeding.graph import fed
from giornata.pretrain.feeding.ledger import Ledger
from giornata.pretrain.feeding.rows_of_phase import Portion, part_of, rows_of_phases
from giornata.pretrain.run_storage import ledger_of, progress_of, run_storage
from giornata.protocol.pretraining import PretrainConfig
from giornata.protocol.pretraining_checks import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """The data set of one phase: what its ledger in the newest checkpoint does not have. `config` is JSON, so that
    Ray can carry it."""

    config: Mapping[str, Any]
    phase: int

    def __call__(self) -> Dataset:
        return self.of(lambda _, portions: portions)

    def of(self, chosen: Callable[[Ledger, list[Portion]], list[Portion]]) -> Dataset:
        """Of what `chosen` keeps of the portions."""
        config = parse(self.config)
        source = source_manifest(config)
        rows_of = rows_of_phases(config, source)[self.phase]
        progress = progress_of(run_storage(config))
        ledger = ledger_of(progress, self.phase, rows_of)
        portions = chosen(ledger, list(ledger.remaining()))
        return fed(config, self.phase, rows_of, portions, source=source)


class Streams(DataConfig):
    """A part for each trainer. With a pinned order its rows are decided beforehand, and every part is a data set of
    its own; otherwise a trainer gets the next block that is ready when it wants one."""

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
        """As Ray Train asks for it: by trainer, a stream for each name."""
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
        # Blocks go to whoever has had the least: with blocks of a step's share all have equally much within one.
        rows = max(1, parse(self._config).train.global_batch_size // world_size)
        dataset = dataset.repartition(target_num_rows_per_block=rows)
        dataset.context.execution_options = self._resolve_execution_options(name)
        return list(dataset.streaming_split(world_size, equal=False, locality_hints=worker_node_ids))

    def _pinned(self, config: PretrainConfig, name: str, world_size: int) -> list[DataIterator]:
        phase = [each.name for each in config.phases].index(name)
        batch = config.train.global_batch_size
        streams = []
        for rank in range(world_size):

            def chosen(ledger: Ledger, portions: list[Portion], rank: int = rank) -> list[Portion]:
                return list(part_of(portions, ledger.rows_of, batch=batch, rank=rank, world=world_size))

            dataset = Remaining(config=self._config, phase=phase).of(chosen)
            options = self._resolve_execution_options(name)
            options.preserve_order = True
            dataset.context.execution_options = options
            streams.append(dataset.iterator())
        return streams
