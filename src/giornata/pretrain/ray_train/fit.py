"""Ray Train keeps the trainers running, and begins them anew when one is lost.

What a run has reached lies in its own storage, in checkpoints that are committed by us
(giornata.pretrain.run_state.committed), and not in Ray Train's: the trainers and the data sets of a new start read
the same newest one, whoever starts them. So a run that was killed goes on when the same command is given again, on
this Ray or on another.

Ray Train calls `Remaining` for the data set of a phase when it starts a group of trainers, and `Streams` for each
trainer's part. Ray's own split would cut rows off until all parts are equal; here every row reaches a trainer, and
the loop waits for no stream that has ended.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import ray.train
from ray.data import DataIterator, Dataset
from ray.exceptions import RayActorError
from ray.train import ControllerError, DataConfig, FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.controller.state import ResizingState, TrainControllerState

from giornata.domain.errors import GiornataError
from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.feeding.graph import fed
from giornata.pretrain.feeding.rows_of_phase import part_of, rows_of_phases
from giornata.pretrain.ray_train.crashes import CRASHES, RayTrainLosses, is_final, lost_others, words_of
from giornata.pretrain.ray_train.progress_actor import RESIZE
from giornata.pretrain.run_state.committed import ledger_of, progress_of, run_storage
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.protocol.pretraining import PretrainConfig

log = logging.getLogger(__name__)

NOTES = "ray-train"
GIVEN_UP = "given up: "
"""The beginning of the error of trainers that would crash as they did before; the words of the crash follow."""
BACKENDS = {True: "nccl", False: "gloo"}
BEGIN_ANEW: Mapping[str, str] = {
    TrainingOutcome.PREEMPTED: "a node of the run is taken away",
    RESIZE: "the number of trainers changes",
}
"""Outcomes of trainers that end well before all is trained. An error would count as one of `max_failures`."""


RESIZE_WITHIN_S, LOOK_EVERY_S = 600.0, 0.2
"""The longest wait for the checkpoint before the number of trainers changes: for a step and a write of all shards."""


class SaveBeforeResize(ControllerCallback):
    """Lets the trainers write a checkpoint and leave before Ray Train changes their number. Without it the steps
    since the last checkpoint would be trained again.

    Ray Train 2.60 has no public hook for this: `RunConfig.callbacks` takes the one of its own that is used here.
    """

    def __init__(
        self,
        actor: Any,
        *,
        got: Callable[[Any], Any] = ray.get,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._actor, self._got, self._clock_s, self._sleep = actor, got, clock_s, sleep

    def after_controller_state_update(
        self,
        previous_state: TrainControllerState,  # noqa: ARG002  (Ray Train's signature)
        current_state: TrainControllerState,
    ) -> None:
        """Ray Train resizes right after this returns."""
        if not isinstance(current_state, ResizingState):
            return
        self._got(self._actor.ask_to_resize.remote())
        until_s = self._clock_s() + RESIZE_WITHIN_S
        while not self._got(self._actor.have_left.remote()) and self._clock_s() < until_s:
            self._sleep(LOOK_EVERY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """The data set of one phase: the rows that the ledger of the newest checkpoint lacks.

    With `part`, (rank, world), it has the rows of one trainer in the pinned order.
    """

    config: PretrainConfig
    phase: int
    part: tuple[int, int] | None = None

    def __call__(self) -> Dataset:
        config, source = self.config, source_manifest(self.config)
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
        self._config = config

    def configure(
        self,
        datasets: dict[str, Dataset],
        world_size: int,
        worker_handles: list[Any] | None,  # noqa: ARG002  (Ray Train's signature)
        worker_node_ids: list[str] | None,
        **_: Any,
    ) -> list[dict[str, DataIterator]]:
        """Return a stream for each name and trainer, as Ray Train expects."""
        parts: list[dict[str, DataIterator]] = [{} for _ in range(world_size)]
        for name, dataset in datasets.items():
            streams = (
                self._pinned(name, world_size)
                if self._config.train.pinned_order
                else self._free(dataset, name, world_size, worker_node_ids)
            )
            for part, stream in zip(parts, streams, strict=True):
                part[name] = stream
        return parts

    def _free(
        self, dataset: Dataset, name: str, world_size: int, worker_node_ids: list[str] | None
    ) -> list[DataIterator]:
        # A block goes to the trainer with the fewest rows: blocks of a step's share keep them equal within one.
        rows = max(1, self._config.train.global_batch_size // world_size)
        dataset = dataset.repartition(target_num_rows_per_block=rows)
        dataset.context.execution_options = self._resolve_execution_options(name)
        return list(dataset.streaming_split(world_size, equal=False, locality_hints=worker_node_ids))

    def _pinned(self, name: str, world_size: int) -> list[DataIterator]:
        phase = [each.name for each in self._config.phases].index(name)
        streams = []
        for rank in range(world_size):
            dataset = Remaining(config=self._config, phase=phase, part=(rank, world_size))()
            options = self._resolve_execution_options(name)
            options.preserve_order = True
            dataset.context.execution_options = options
            streams.append(dataset.iterator())
        return streams


def fit(
    config: PretrainConfig,
    *,
    actor: Any,
    command_ms: int = 0,
    owner: str,
    once: Callable[[PretrainConfig, Any], str] | None = None,
) -> None:
    """Train to the end of the last phase, or until the progress actor is asked to stop.

    Raises what ended the run for good; GiornataError where the trainers crash in the same way again and again. The
    command that trains began at `command_ms` and costs money since then; `owner` is its token on the storage, empty
    where no command holds it. `once` is Ray Train's part: one group of trainers and its restarts.
    """
    losses, once = RayTrainLosses(), once or partial(_fit_once, command_ms=command_ms, owner=owner)
    while True:
        try:
            outcome = once(config, actor)
        except (ControllerError, RayActorError, WorkerGroupError) as error:
            # Ray Train itself was lost, or an actor that it needs and does not start again; or trainers crash on.
            enough = isinstance(error, WorkerGroupError) and config.workers.max_failures >= 0
            if enough or not losses.bearable(progress_of(run_storage(config)).step):
                raise
            log.warning("Ray Train was lost, and is begun anew: %s", error)
            continue
        if outcome.startswith(GIVEN_UP):
            raise GiornataError(f"the run is given up: {outcome.removeprefix(GIVEN_UP)}")
        if outcome not in BEGIN_ANEW:
            return
        log.info("the trainers are begun anew: %s", BEGIN_ANEW[outcome])


def _fit_once(config: PretrainConfig, actor: Any, *, command_ms: int, owner: str) -> str:
    workers = config.workers
    least = workers.trainers if workers.min_trainers is None else workers.min_trainers
    scaling = ScalingConfig(
        num_workers=workers.trainers if least == workers.trainers else (least, workers.trainers),
        use_gpu=workers.use_gpu,
        accelerator_type=workers.accelerator_type,
        elastic_resize_monitor_interval_s=workers.resize_interval_s,
    )
    failures = FailureConfig(max_failures=CRASHES if workers.max_failures < 0 else workers.max_failures)
    outcome = on_trainers(
        _work,
        config,
        {"actor": actor, "command_ms": command_ms, "owner": owner},
        scaling=scaling,
        run_options={"callbacks": [SaveBeforeResize(actor)], "failure_config": failures},
        datasets={phase.name: Remaining(config=config, phase=place) for place, phase in enumerate(config.phases)},
        dataset_config=Streams(config),
    )
    return str(outcome)


def on_trainers(
    loop: Callable[[dict[str, Any]], Any],
    config: PretrainConfig,
    values: Mapping[str, Any],
    *,
    scaling: ScalingConfig,
    run_options: Mapping[str, Any] | None = None,
    **data: Any,
) -> Any:
    """Run `loop` in a group of trainers, and return what the first one returns. `loop` gets `values` with `config`.

    Ray Train's own notes lie where all nodes see them, under a new name each time: it shall restore nothing.
    """
    run, notes = run_storage(config), f"{NOTES}/{uuid.uuid4().hex}"
    trainer = TorchTrainer(
        loop,
        train_loop_config={"config": config.to_json(), **values},
        torch_config=TorchConfig(backend=BACKENDS[config.workers.use_gpu]),
        scaling_config=scaling,
        run_config=RunConfig(
            name=config.name,
            storage_path=run.path(notes),
            storage_filesystem=run.filesystem,
            **(run_options or {}),
        ),
        **data,
    )
    try:
        return trainer.fit().return_value
    finally:
        run.remove_all(notes)


def _work(values: Mapping[str, Any]) -> str:
    """See giornata.pretrain.ray_train.worker.work. Only a trainer imports diffusers, which takes seconds.

    An error is told at once: Ray Train starts the trainers anew and tells of the last error only, when it gives up.
    Where another start is hopeless, the trainers end instead, with GIVEN_UP and the reason.
    """
    actor = values["actor"]
    if ray.train.get_context().get_world_rank() == 0:
        ray.get(actor.begun.remote())
    if hopeless := ray.get(actor.hopeless.remote()):
        return GIVEN_UP + hopeless
    try:
        from giornata.pretrain.ray_train.worker import work

        return work(values)
    except Exception as error:
        if not lost_others(error):
            ray.get(actor.crashed.remote(words_of(error), is_final(error)))
        raise
    finally:
        ray.get(actor.left.remote())
