"""The seconds that each part of training takes on a machine of slowness 1."""

import dataclasses
from dataclasses import dataclass

from giornata.simulate.rented.machines import SimulatedMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTrainer:
    """A program that trains, by its times.

    `model_s` is paid before every job unless the engine `stays_warm`, and then once for each process. Caching is
    what comes before the first step besides the model. A checkpoint holds the steps up for `checkpoint_s`.
    """

    name: str
    step_s: float
    model_s: float
    stays_warm: bool
    caching_s: float
    checkpoint_s: float = 0.5
    checkpoint_bytes: int = 66_000_000  # the ancestor's zip; ours is of that order
    pictures_bytes: int = 30_000_000
    result_bytes: int = 24_000_000
    export_s: float = 3.0

    def whole_job_s(self, steps: int) -> float:
        """The seconds of a whole job on a machine of slowness 1 without interruptions and transfers."""
        return self.model_s + self.caching_s + steps * self.step_s + self.export_s

    def fetch_s(self, machine: SimulatedMachine, *, resumes: bool) -> float:
        """Return the seconds to fetch the pictures, and a checkpoint on resume."""
        size_bytes = self.pictures_bytes + (self.checkpoint_bytes if resumes else 0)
        return transfer_s(size_bytes, machine.down_mbps)

    def upload_s(self, machine: SimulatedMachine) -> float:
        """Return the seconds to upload one checkpoint, beside the steps."""
        return transfer_s(self.checkpoint_bytes, machine.up_mbps)

    def finish_s(self, machine: SimulatedMachine) -> float:
        """Return the seconds from the last step to the result in storage."""
        return self.export_s + transfer_s(self.result_bytes, machine.up_mbps)


def transfer_s(size_bytes: int, mbps: float) -> float:
    """Seconds on the wire, and half a second of words before."""
    return 0.5 + size_bytes * 8 / (mbps * 1e6)


# The ancestor's worker: a script for each job, which loads the model anew and encodes every picture at every step.
# Seconds are calibrated (docs/benchmark-log.md), not measured: see benchmarks/simulate/calibration.py.
ANCESTOR_TRAINER = SimulatedTrainer(
    name="ancestor's script",
    step_s=2.257,
    model_s=60.0,
    stays_warm=False,
    caching_s=0.0,
    checkpoint_s=2.0,
)

# An ESTIMATE, not a measurement: no GPU figure of ours exists. On two cores the engine trained the tiny model at
# batch 1 with about 2 to 5 times the images/s of the example script (docs/benchmark-log.md); a third of the step's
# time less on a GPU is a careful guess from what that speed comes from (latents and texts encoded once, compiled
# kernels).
SPEED_UP = 1.5
OUR_TRAINER = dataclasses.replace(
    ANCESTOR_TRAINER,
    name=f"ours, steps {SPEED_UP} times as fast (an estimate)",
    step_s=ANCESTOR_TRAINER.step_s / SPEED_UP,
    stays_warm=True,
    caching_s=8.0,
    checkpoint_s=0.3,
)
