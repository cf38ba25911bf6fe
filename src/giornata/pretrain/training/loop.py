"""The training loop of one trainer: through the phases, from wherever the last checkpoint was.

`train` is called in every trainer's process. It knows torch and nothing of what started it: rows come as feeds,
metrics go to a callable, a notice of preemption is asked for. What all trainers have to do alike (stop, leave out a
step, end a phase) they agree on before each step.
"""

import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from giornata.pretrain.feeding.examples import NOTHING, Portioned, Prefetcher, filled, portioned
from giornata.pretrain.feeding.ledger import Use
from giornata.pretrain.run_state.checkpoints import Checkpointer, Snapshot, Uses, record_uses
from giornata.pretrain.run_state.committed import ledger_of
from giornata.pretrain.run_state.costs import Cadence, CostRecord, TrainerStart, step_rates
from giornata.pretrain.run_state.metrics_log import MetricsLog, drop_after
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingOutcome, origin_of
from giornata.pretrain.training.models import flops_per_picture
from giornata.pretrain.training.trainer import Trainer, TrainingRun
from giornata.protocol.pretraining import BESIDE

ALLOWED_UNREADABLE = 16
"""So few rows that cannot be read never stop a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The next step, summed or decided over all trainers."""

    rows: int
    passes: int
    unreadable: int
    waited_s: float
    preempted: bool
    ended: bool
    save: bool


def agree(channel: Channel, mine: Portioned, *, waited_s: float, preempted: bool, save: bool = False) -> Agreed:
    """Tell the others what this trainer has for the step, and hear what they have. Every trainer calls it at once.
    `save` asks for a checkpoint after the step."""
    numbers = [
        len(mine.uses),
        len(mine.examples),
        len(mine.unreadable),
        int(waited_s * 1e6),
        int(preempted),
        int(mine.empty),
        int(save),
    ]
    everybodys = zip(*channel.gather(numbers), strict=True)
    rows, passes, unreadable, waited_us, anybody_preempted, ended, anybody_saves = everybodys
    return Agreed(
        rows=sum(rows),
        passes=max(passes),
        unreadable=sum(unreadable),
        waited_s=max(waited_us) / 1e6,
        preempted=any(anybody_preempted),
        ended=all(ended),
        save=any(anybody_saves),
    )


class RowsMissing(RuntimeError):
    """The feeds have ended and rows of the phase were in none of them."""


class TooManyUnreadable(RuntimeError):
    """More rows than data.max_quarantined_share cannot be read although they were ingested."""


def train(run: TrainingRun) -> TrainingOutcome:
    """Train until all phases are done, or until `run.preempted` says that the trainers are to leave.

    Raises CheckpointDamaged (start again: the one before is taken), InvalidInput when the checkpoint is of another
    configuration or data set, TrainedTwice, RowsMissing, TooManyUnreadable, TooManyBadSteps, CheckpointsFail, and
    whatever the feeds raise. Whatever it raises, the next start goes on from the last checkpoint.
    """
    with ExitStack() as stack:
        return TrainingLoop(run, stack).run()


class TrainingLoop:
    def __init__(self, run: TrainingRun, stack: ExitStack) -> None:
        self._run, self._channel = run, Channel()
        self._began_s = run.clock_s()
        limit = run.config.train.checkpoints_total_limit
        self._checkpoints = Checkpointer(run.storage, run.scratch, limit=limit, device=run.device, fence=run.fence)
        stack.callback(self._checkpoints.close)
        self._trainer = Trainer(run, self._channel, stack)
        self._log = MetricsLog(run.storage, fence=run.fence)
        stack.callback(self._log.close)
        self._trained: list[Use] = []
        self._quarantined: list[Use] = []
        self._usd_per_s = 0.0
        self._cadence = Cadence(config=run.config, clock_s=run.clock_s)
        self._restore()
        stack.callback(self._settle)

    def run(self) -> TrainingOutcome:
        while self._progress.phase < len(self._run.config.phases):
            outcome = self._phase()
            if outcome is not TrainingOutcome.FINISHED:
                self._progress.left = True
                self._save()
                self._checkpoints.wait()
                return outcome
            self._change_phase()
        self._checkpoints.wait()
        return TrainingOutcome.FINISHED

    def _restore(self) -> None:
        self._progress = self._trainer.restore()
        progress, first = self._progress, self._channel.rank == 0
        if self._run.start is not None:
            self._checkpoints.last = self._run.start.step, self._run.start.phase
            progress.interruptions += not progress.left
            progress.left = False
        self._begin_ledger()
        self._cadence.begin(progress)
        attempt = self._run.attempt or TrainerStart(name=uuid.uuid4().hex, began_s=self._began_s)
        self._account = CostRecord.of(attempt, self._run.storage, self._progress, written=first)
        if first:
            drop_after(self._run.storage, self._progress.step)

    def _begin_ledger(self) -> None:
        """Take the phase's ledger out of the progress, or begin one. The first trainer alone keeps it up to date."""
        progress, phases = self._progress, self._run.phases
        if progress.phase < len(phases):
            self._ledger = ledger_of(progress, progress.phase, phases[progress.phase])
            del progress.ledgers[progress.phase :]

    def _phase(self) -> TrainingOutcome:
        """Train the current phase until its last row."""
        run, progress = self._run, self._progress
        self._micro_batch = self._trainer.prepare(progress)
        encoders = run.config.encoders_of(progress.phase) if run.config.encode.mode in BESIDE else 0
        self._usd_per_s = run.config.usd_per_s(self._channel.world, encoders)
        self._peak_per_s = None
        if run.peak_flops_per_s:
            flops = flops_per_picture(run.config.model.architecture, run.config.phases[progress.phase].resolution)
            self._peak_per_s = self._channel.world * run.peak_flops_per_s / flops
        self._spend()  # the start of all this, or what lay between the phases
        outcome, missing = self._until_feeds_end(), run.phases[progress.phase].samples - progress.used
        if outcome is TrainingOutcome.FINISHED and missing:
            self._save()  # the next start asks for these rows alone
            self._checkpoints.wait()
            name = run.config.phases[progress.phase].name
            raise RowsMissing(f"{missing} rows of phase {name} were never fed")
        return outcome

    def _until_feeds_end(self) -> TrainingOutcome:
        run, progress = self._run, self._progress
        given = {"phase": progress.phase, "micro_batch": self._micro_batch, "device": run.device}
        make = partial(portioned, draws=self._trainer.draws, **given)
        ahead = Prefetcher(run.feeds(progress.phase, self._ledger), make, run.clock_s)
        try:
            while progress.used < run.phases[progress.phase].samples:
                taken, waited_s = ahead.take()
                mine = taken or NOTHING
                save = self._channel.rank == 0 and self._cadence.due(progress)
                agreed = agree(self._channel, mine, waited_s=waited_s, preempted=run.preempted(), save=save)
                if agreed.preempted:
                    return TrainingOutcome.PREEMPTED
                if agreed.ended:
                    break
                self._step(mine, agreed)
                if agreed.save and agreed.rows and progress.used < run.phases[progress.phase].samples:
                    self._cadence.saving(self._save, progress)
        finally:
            ahead.close()
        return TrainingOutcome.FINISHED

    def _step(self, mine: Portioned, agreed: Agreed) -> None:
        run, progress, numbers = self._run, self._progress, dict[str, float]()
        sound = True
        if agreed.rows:
            examples = filled(mine.examples, self._trainer.blank, agreed.passes)
            sound, numbers = self._trainer.step(progress, examples, agreed.rows)
        (self._trained if sound else self._quarantined).extend(mine.uses)
        self._quarantined.extend(mine.unreadable)
        run.traced(progress.phase, progress.step, mine.uses if sound else ())
        progress.used += agreed.rows + agreed.unreadable
        progress.unreadable += agreed.unreadable
        if agreed.rows:
            self._tell(numbers, agreed)
        self._check_unreadable()

    def _tell(self, numbers: Mapping[str, float], agreed: Agreed) -> None:
        progress, lap_s = self._progress, self._spend()
        row = {
            "step": float(progress.step),
            "time_s": self._run.now_s(),
            "phase": float(progress.phase),
            "samples": float(progress.samples),
            "spent_usd": progress.spent_usd,
            "skipped_steps": float(progress.skipped_steps),
            "unreadable": float(progress.unreadable),
            "micro_batch": float(self._micro_batch),
            **numbers,
            **step_rates(rows=agreed.rows, lap_s=lap_s, waited_s=agreed.waited_s, peak_per_s=self._peak_per_s),
            **self._trainer.validated(progress),
        }
        self._spend()  # what validation took
        if self._checkpoints.last is not None:
            row["checkpoint_step"] = float(self._checkpoints.last[0])
        if self._channel.rank == 0:
            self._log.add(row)
        self._run.report(row)

    def _check_unreadable(self) -> None:
        share, found = self._run.config.data.max_quarantined_share, self._progress.unreadable
        if found > (max(ALLOWED_UNREADABLE, share * self._progress.used) if share else 0):
            phase = self._run.config.phases[self._progress.phase].name
            raise TooManyUnreadable(
                f"{found} of {self._progress.used} rows of phase {phase} could not be read: more than"
                f" data.max_quarantined_share = {share:g}; look at the shards in {self._run.config.data.shards}"
            )

    def _save(self) -> None:
        """Begin a checkpoint of everything so far; none where the last one is of this very step."""
        progress = self._progress
        progress.origin = origin_of(progress, self._run.config, self._run.digests)
        self._checkpoints.wait()
        if self._checkpoints.last == (progress.step, progress.phase):
            return
        self._checkpoints.begin(
            Snapshot(
                tensors=self._trainer.tensors(),
                progress=progress,
                ledger=self._ledger if self._channel.rank == 0 and progress.phase < len(self._run.phases) else None,
                uses=self._taken_uses(),
                alongside=self._log.cut(),
            )
        )

    def _taken_uses(self) -> Uses:
        uses = Uses(trained=self._trained, quarantined=self._quarantined)
        self._trained, self._quarantined = [], []
        return uses

    def _change_phase(self) -> None:
        """The phase is complete: a checkpoint that says so, exactly here."""
        progress = self._progress
        self._checkpoints.wait()
        record_uses(self._ledger, self._taken_uses(), self._channel)
        if not self._channel.gather([int(self._ledger.complete)])[0][0]:
            raise RowsMissing(f"phase {progress.phase} was fed as many rows as it has, and not those")
        progress.ledgers.append(self._ledger.to_json())
        progress.phase += 1
        progress.step_in_phase = progress.used = progress.unreadable = 0
        self._begin_ledger()
        self._cadence.saving(self._save, progress)

    def _spend(self) -> float:
        """Count what the time since the last count cost; those seconds."""
        lap_s = self._run.clock_s() - self._account.until_s
        self._account.add(lap_s, self._usd_per_s)
        self._progress.spent_usd = self._account.total_usd
        self._progress.trained_s += lap_s
        return lap_s

    def _settle(self) -> None:
        """Count the last lap, and write the account."""
        self._spend()
        self._account.close()
