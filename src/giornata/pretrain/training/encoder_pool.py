"""How many encoders work beside a run, and when their number is corrected.

A pool has a fixed size for as long as its data set is iterated. Every so often, at a checkpoint, what was seen since
the last look (the share of the time in which trainers waited, the share in which encoders worked) is held against
giornata.pretrain.planning.correction. Another number is written into the checkpoint, and all trainers start again
from that: the next start makes its data set from the ledger there, with a pool of the new size. So a change is a
restart like any other, and no row is lost or repeated by it. A restart costs time, which a change has to earn.
"""

import logging
from dataclasses import asdict, dataclass
from typing import Any

from giornata.pretrain.planning.correction import Correction, Hourly, Observed, correct, pays_back
from giornata.pretrain.training.progress import Progress
from giornata.protocol.pretraining import Mode, PretrainConfig

log = logging.getLogger(__name__)

BESIDE = frozenset({Mode.ONLINE, Mode.HYBRID})
WARM_UP_STEPS = 3
"""After a start trainers first wait for encoders that load their models, and then find what these made meanwhile."""
MOST_SEEN = 50


def encoders_now(config: PretrainConfig, progress: Progress, phase: int) -> int:
    """How many there are in a start from this progress: the corrected number, within what the configuration allows
    now, or the one that it says."""
    most, asked = config.encode.max_encoders, config.encoders_of(phase)
    if most is None or progress.encoders is None or phase != progress.phase:
        return asked
    return min(most, progress.encoders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From `before` encoders to `encoders`, after `step`, and what was seen that speaks for it."""

    step: int
    phase: int
    before: int
    encoders: int
    data_wait: float
    utilisation: float
    reason: str


@dataclass(slots=True, kw_only=True)
class Seen:
    """Sums over steps. `waited_s`: of the trainer that waited longest in each; `encode_s`: of all encoders."""

    rows: int = 0
    lap_s: float = 0.0
    waited_s: float = 0.0
    encode_s: float = 0.0


class EncoderWatch:
    """Of one phase in one start of so many trainers."""

    def __init__(self, config: PretrainConfig, progress: Progress, *, trainers: int) -> None:
        self._config, self._trainers = config, trainers
        beside = config.encode.mode in BESIDE and progress.phase < len(config.phases)
        self.encoders = encoders_now(config, progress, progress.phase) if beside else 0
        self._seen, self._steps = Seen(), 0

    @property
    def corrects(self) -> bool:
        """Whether the number may change at all."""
        return self.encoders > 0 and self._config.encode.max_encoders is not None

    def step(self, *, rows: int, lap_s: float, waited_s: float, encode_s: float) -> dict[str, float]:
        """Count one step; returns metrics: `encoders`, `encoder_utilisation` (0 to 1). None where there are none."""
        if not self.encoders:
            return {}
        self._steps += 1
        if self._steps > WARM_UP_STEPS:
            seen = self._seen
            seen.rows, seen.lap_s = seen.rows + rows, seen.lap_s + lap_s
            seen.waited_s, seen.encode_s = seen.waited_s + waited_s, seen.encode_s + encode_s
        return {"encoders": float(self.encoders), "encoder_utilisation": self._busy(encode_s, lap_s)}

    def decide(self, progress: Progress, *, rows_left: int, restart_s: float) -> Change | None:
        """Called where a checkpoint is due. Notes in `progress` what was seen, once that was long enough; returns the
        change if there is to be one. `rows_left` of this phase; `restart_s` is what a new start takes."""
        encode, seen = self._config.encode, self._seen
        if not self.corrects or encode.max_encoders is None or not seen.rows or seen.lap_s < encode.correct_after_s:
            return None
        self._seen = Seen()
        waited = min(1.0, seen.waited_s / seen.lap_s)
        now = Observed(encoders=self.encoders, data_wait=waited, utilisation=self._busy(seen.encode_s, seen.lap_s))
        hourly = self._hourly()
        earlier = _earlier(progress, self._conditions(hourly))
        progress.encoders_seen = [*progress.encoders_seen, {**asdict(now), **self._conditions(hourly)}][-MOST_SEEN:]
        found = correct(now, earlier, hourly, most=encode.max_encoders)
        full_rate = seen.rows / seen.lap_s / max(1e-9, 1 - waited)
        left_h = rows_left / full_rate / 3600
        if found.encoders == self.encoders:
            log.info("%d encoders stay: %s", self.encoders, found.reason)
            return None
        restart_s = restart_s if encode.restart_s is None else encode.restart_s
        if not pays_back(now, found, hourly, work_left_h=left_h, restart_s=restart_s):
            log.info(
                "%d encoders stay, as a restart costs more than is left to save: %s", self.encoders, found.reason
            )
            return None
        log.info("%d encoders become %d: %s", self.encoders, found.encoders, found.reason)
        return self._changed(progress, now, found)

    def _changed(self, progress: Progress, now: Observed, found: Correction) -> Change:
        change = Change(
            step=progress.step,
            phase=progress.phase,
            before=now.encoders,
            encoders=found.encoders,
            data_wait=now.data_wait,
            utilisation=now.utilisation,
            reason=found.reason,
        )
        progress.encoders = found.encoders
        progress.encoder_changes = [*progress.encoder_changes, asdict(change)]
        return change

    def _busy(self, encode_s: float, lap_s: float) -> float:
        return min(1.0, encode_s / (self.encoders * lap_s)) if lap_s > 0 else 0.0

    def _hourly(self) -> Hourly:
        workers = self._config.workers
        return Hourly(
            trainers_usd=self._trainers * (workers.trainer_usd_per_h or 0.0),
            encoder_usd=workers.encoder_usd_per_h or 0.0,
        )

    def _conditions(self, hourly: Hourly) -> dict[str, float]:
        return {**asdict(hourly), "trainers": self._trainers}


def _earlier(progress: Progress, conditions: dict[str, Any]) -> list[Observed]:
    """What was seen in this phase with as many trainers, for the same prices."""
    return [
        Observed(**{name: value for name, value in each.items() if name not in conditions})
        for each in progress.encoders_seen
        if all(each.get(name) == value for name, value in conditions.items())
    ]
