"""The two programs that are told apart in every comparison: what is policy, and what is the trainer's speed."""

import dataclasses

from giornata.simulate.trainer import Trainer

# The ancestor's worker: a script for each job, which loads the model anew and encodes every picture at every step.
# Seconds are calibrated (docs/benchmarks.md), not measured: see `giornata.simulate.calibration`.
ANCESTOR_TRAINER = Trainer(
    name="ancestor's script",
    step_s=2.257,
    model_s=60.0,
    stays_warm=False,
    caching_s=0.0,
    checkpoint_s=2.0,
)

# An ESTIMATE, not a measurement: no GPU figure of ours exists. On two cores the engine trained the tiny model at
# batch 1 with about 2 to 5 times the images/s of the example script (docs/benchmarks.md); a third of the step's time
# less on a GPU is a careful guess from what that speed comes from (latents and texts encoded once, compiled kernels).
SPEED_UP = 1.5
OUR_TRAINER = dataclasses.replace(
    ANCESTOR_TRAINER,
    name=f"ours, steps {SPEED_UP} times as fast (an estimate)",
    step_s=ANCESTOR_TRAINER.step_s / SPEED_UP,
    stays_warm=True,
    caching_s=8.0,
    checkpoint_s=0.3,
)
