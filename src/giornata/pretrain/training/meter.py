"""What a step is measured by, besides its losses."""

from collections.abc import Callable
from dataclasses import dataclass

from giornata.protocol.pretraining import PretrainConfig

HOUR_S = 3600.0


def usd_per_s(config: PretrainConfig, trainers: int, encoders: int) -> float:
    """Of all devices that this run holds: the trainers', and those of encoders that work beside it."""
    workers = config.workers
    per_h = trainers * (workers.trainer_usd_per_h or 0.0) + encoders * (workers.encoder_usd_per_h or 0.0)
    return per_h / HOUR_S


@dataclass(slots=True, kw_only=True)
class Meter:
    """Reads the clock at the end of every step; the first lap begins at `since_s`. `peak_flops_per_s` is of one
    trainer; None: MFU is not told."""

    clock_s: Callable[[], float]
    trainers: int
    usd_per_s: float
    flops_per_picture: int
    peak_flops_per_s: float | None
    since_s: float

    def lap_s(self) -> float:
        """Seconds since the last call."""
        now_s = self.clock_s()
        lap_s, self.since_s = now_s - self.since_s, now_s
        return lap_s

    def numbers(self, *, rows: int, lap_s: float, waited_s: float) -> dict[str, float]:
        """`images_per_s` of all trainers; `data_wait_share`, the part of the time that the slowest to be fed waited;
        `mfu`, 0 to 1."""
        per_s = rows / lap_s if lap_s > 0 else 0.0
        found = {"images_per_s": per_s, "data_wait_share": min(1.0, waited_s / lap_s) if lap_s > 0 else 0.0}
        if self.peak_flops_per_s:
            found["mfu"] = per_s * self.flops_per_picture / (self.trainers * self.peak_flops_per_s)
        return found
