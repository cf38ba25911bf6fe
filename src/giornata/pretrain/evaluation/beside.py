"""Evaluates checkpoints while the run goes on: one at a time, each in a Ray task.

The newest checkpoint that is due comes first; those that became due meanwhile are left out. A failure, and a task
that takes longer than `evaluate.timeout_s`, is told and no more. A task gets a GPU where the cluster has more of them
than trainers and encoders take, and when all is trained; otherwise it gets processors at the lowest priority.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import ray

from giornata.domain.errors import GiornataError
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoder import gpus_of_an_encoder
from giornata.pretrain.evaluation.kept import FOLDER, keep, newest_kept, numbers_of
from giornata.pretrain.ray_train.crashes import words_of
from giornata.pretrain.run_state.committed import CommittedCheckpoint, committed, run_storage
from giornata.protocol.pretraining import BESIDE, CheckpointCadence, PretrainConfig
from giornata.protocol.pretraining_checks import parse

POLL_S = 0.2
LEAST_PRIORITY = 19


class EvaluationTask(Protocol):
    """The evaluation of one checkpoint."""

    def result(self) -> dict[str, float] | None:
        """Return the evaluation's numbers; None while it runs. Raises GiornataError, OSError or RayError."""

    def cancel(self) -> None: ...


Begin = Callable[[CommittedCheckpoint, bool], EvaluationTask]
"""(checkpoint, whether all is trained) to the task that evaluates it."""


def due(config: PretrainConfig, checkpoint: CommittedCheckpoint, before: tuple[int, int]) -> bool:
    """Return True when the checkpoint is to be evaluated.

    Due are every `evaluate.checkpoints`-th checkpoint by number of steps, and each that completes a phase. With
    checkpoints by time, the first one after as many steps is due. `before` is (step, phase) of the checkpoint before.
    """
    every = config.evaluate.checkpoints * config.train.checkpoint_steps
    if not every or checkpoint.phase != before[1]:
        return bool(every)
    if config.train.checkpoint_cadence is CheckpointCadence.YOUNG_DALY:
        return checkpoint.step // every > before[0] // every
    return checkpoint.step % every == 0


class Evaluations:
    """Evaluates checkpoints of one run. The watching thread calls `turn`, which never waits for an evaluation."""

    def __init__(
        self,
        config: PretrainConfig,
        run: Storage,
        begin: Begin,
        tell: Callable[[dict[str, Any]], object],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._run, self._begin, self._tell, self._clock_s = config, run, begin, tell, clock_s
        self._seen: tuple[int, int] | None = None
        self._news, self._all_trained = False, False
        self._under_way: tuple[CommittedCheckpoint, EvaluationTask, float] | None = None

    def news(self) -> None:
        """Note that there is another checkpoint, which may be due."""
        self._news = True

    def turn(self) -> None:
        """Take a finished evaluation, and begin one that is due."""
        try:
            if self._under_way is not None:
                self._take(*self._under_way)
            if self._under_way is None and self._news and bool(self._config.evaluate.checkpoints):
                self._news = False
                if (chosen := self._chosen()) is not None:
                    self._under_way = chosen, self._begin(chosen, self._all_trained), self._clock_s()
        except Exception as error:  # noqa: BLE001 - a supervisor: whatever it is, the run goes on
            self._failed("what is due", error)

    def finish(self, wanted: threading.Event, *, within_s: float) -> None:
        """All is trained: wait for the evaluation of what is due, until `wanted` is set or the time is over."""
        self._news = self._all_trained = True
        until_s = self._clock_s() + within_s
        while not wanted.is_set() and self._clock_s() <= until_s:
            self.turn()
            if self._under_way is None and not self._news:
                return
            wanted.wait(POLL_S)

    def close(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way[1].cancel()

    def _take(self, checkpoint: CommittedCheckpoint, task: EvaluationTask, began_s: float) -> None:
        timeout_s = self._config.evaluate.timeout_s
        try:
            numbers = task.result()
            if numbers is None and self._clock_s() - began_s <= timeout_s:
                return
            self._under_way = None
            if numbers is None:
                task.cancel()
                raise GiornataError(
                    f"the evaluation took longer than evaluate.timeout_s, {timeout_s:g} s, and was stopped"
                )
            self._say(checkpoint, numbers=numbers)
        except (GiornataError, OSError, ray.exceptions.RayError) as error:
            self._under_way = None
            self._failed(checkpoint.name, error)

    def _chosen(self) -> CommittedCheckpoint | None:
        """The newest that is due and was not evaluated. What else is due is told and left out."""
        seen = self._seen or newest_kept(self._run)
        before, wanted = seen, list[CommittedCheckpoint]()
        for each in sorted(committed(self._run, warn=False), key=lambda each: (each.step, each.phase)):
            if (each.step, each.phase) > seen:
                if due(self._config, each, before) and not self._run.exists(f"{FOLDER}/{each.name}.json"):
                    wanted.append(each)
                self._seen = each.step, each.phase
            before = each.step, each.phase
        for each in wanted[:-1]:
            self._say(each, skipped="a newer one was due as well")
        return wanted[-1] if wanted else None

    def _failed(self, name: str, error: Exception) -> None:
        words = words_of(error) if isinstance(error, ray.exceptions.RayError) else str(error)
        self._tell({"event": "evaluation", "checkpoint": name, "failed": words or type(error).__name__})

    def _say(self, checkpoint: CommittedCheckpoint, **told: Any) -> None:
        self._tell({"event": "evaluation", "checkpoint": checkpoint.name, "step": checkpoint.step, **told})


class RayTask:
    """A task in a process of its own, on the Ray that is there."""

    def __init__(self, config: PretrainConfig, checkpoint: CommittedCheckpoint, all_trained: bool) -> None:
        gpu = spare_gpu(config, there=ray.cluster_resources().get("GPU", 0.0), all_trained=all_trained)
        # It changes its priority, which cannot be taken back: no other task gets this process.
        task = ray.remote(max_calls=1, max_retries=0)(_evaluate_at_low_priority)
        self.ref = task.options(num_cpus=0, num_gpus=int(gpu)).remote(config.to_json(), checkpoint.name, gpu)

    def result(self) -> dict[str, float] | None:
        """Return the evaluation's numbers; None while the evaluation runs."""
        ready, _ = ray.wait([self.ref], timeout=0)
        if not ready:
            return None
        found: dict[str, float] | str = ray.get(ready[0])
        if isinstance(found, str):
            raise GiornataError(found)
        return found

    def cancel(self) -> None:
        ray.cancel(self.ref, force=True)


def spare_gpu(config: PretrainConfig, *, there: float, all_trained: bool) -> bool:
    """Return True when an evaluation gets one of the GPUs that are `there`.

    An evaluation never gets a GPU that restarted trainers or encoders may want. With `evaluate.use_gpu` the
    evaluation waits for a GPU.
    """
    workers, encoders = config.workers, max(config.encoders_of(place) for place in range(len(config.phases)))
    taken = workers.trainers if workers.use_gpu else 0.0
    if config.encode.mode in BESIDE:
        taken += encoders * gpus_of_an_encoder(config)
    return config.evaluate.use_gpu or there - (0.0 if all_trained else taken) >= 1.0


def _evaluate_at_low_priority(values: Mapping[str, Any], name: str, gpu: bool) -> dict[str, float] | str:
    """See `evaluated`. Its errors travel as words: those of this program need not be pickled."""
    from giornata.diffusion.draws.determinism import fix_determinism, let_libraries_repeat

    if not gpu:
        os.nice(LEAST_PRIORITY)
    let_libraries_repeat(os.environ)
    fix_determinism(threads=1)
    try:
        return evaluated(parse(values), name, gpu=gpu)
    except (GiornataError, OSError) as error:
        return str(error) or type(error).__name__


def evaluated(config: PretrainConfig, name: str, *, gpu: bool) -> dict[str, float]:
    """Evaluate the checkpoint of this name, and keep the report in the run's storage. Raises GiornataError and
    OSError."""
    from giornata.pretrain.evaluate import ScoringModels, checkpoint_of, evaluate

    settings, run = config.evaluate, run_storage(config)
    models = ScoringModels.of(settings.clip, settings.inception)
    with tempfile.TemporaryDirectory(prefix="giornata-evaluation-") as folder:
        report = evaluate(config, name=name, out=Path(folder), models=models, most=settings.rows, gpu=gpu)
        keep(run, checkpoint_of(config, name), report)
    return numbers_of(report)
