"""How a step is laid out in the device's memory, and how it can be made smaller.

Three things can give, in this order, each as far as it goes:

1. `rows`: a step's pictures go through the model all at once, or fewer at a time, down to `train_batch_size`, which
   is what the user takes to fit. Same draws, same mean, but sums are made in another order: the last bits differ.
2. `recompute`: gradient checkpointing, first selective, then full. Changes no bit.
3. `rows` again, down to single pictures.

What was chosen stands in the fingerprint of every checkpoint and holds for all later attempts of the job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from giornata.diffusion.recompute import Recompute
from giornata.protocol.specs import TrainSpec

FINGERPRINT_KEY = "footprint"
_ORDER = (Recompute.OFF, Recompute.SELECTIVE, Recompute.FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """`rows`: how many pictures go through the model at once, with as many class pictures beside them, if any."""

    recompute: Recompute
    rows: int

    @classmethod
    def asked_for(cls, spec: TrainSpec) -> "Footprint":
        """All of a step at once, with the gradient checkpointing that the spec has."""
        rows = spec.train_batch_size * spec.gradient_accumulation_steps
        return cls(recompute=Recompute.of(spec.gradient_checkpointing), rows=rows)

    def in_words(self) -> str:
        """For a person."""
        return f"gradient checkpointing {self.recompute}, {self.rows} at a time"


def ladder(spec: TrainSpec) -> tuple[Footprint, ...]:
    """What the job may be laid out as: as asked for first, then ever smaller."""
    rungs = [Footprint.asked_for(spec)]
    rungs += [replace(rungs[0], rows=rows) for rows in _halved(rungs[0].rows, spec.train_batch_size)]
    last = rungs[-1]
    rungs += [replace(last, recompute=each) for each in _ORDER[_ORDER.index(last.recompute) + 1 :]]
    rungs += [replace(rungs[-1], rows=rows) for rows in _halved(last.rows, 1)]
    return tuple(rungs)


def _halved(rows: int, least: int) -> list[int]:
    """Half of it, rounded up, and so on, as far as `least`."""
    found = []
    while rows > least:
        rows = max(least, -(-rows // 2))
        found.append(rows)
    return found


def to_fingerprint(footprint: Footprint, spec: TrainSpec) -> dict[str, Any]:
    """An entry for the fingerprint when it is another than the spec asked for; empty otherwise."""
    if footprint == Footprint.asked_for(spec):
        return {}
    return {FINGERPRINT_KEY: {"gradient_checkpointing": footprint.recompute.value, "rows": footprint.rows}}


def without_footprint(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint less its entry."""
    return {name: value for name, value in fingerprint.items() if name != FINGERPRINT_KEY}


def from_fingerprint(fingerprint: Mapping[str, Any], spec: TrainSpec) -> Footprint:
    """What the attempt that wrote a checkpoint used."""
    said = fingerprint.get(FINGERPRINT_KEY)
    if said is None:
        return Footprint.asked_for(spec)
    return Footprint(recompute=Recompute(said["gradient_checkpointing"]), rows=int(said["rows"]))


def smaller_of(one: Footprint, other: Footprint) -> Footprint:
    """What is small enough for both."""
    recompute = max(one.recompute, other.recompute, key=_ORDER.index)
    return Footprint(recompute=recompute, rows=min(one.rows, other.rows))


def below_on(rungs: Sequence[Footprint], footprint: Footprint) -> list[Footprint]:
    """What of a ladder is smaller than that, the largest first."""
    return [rung for rung in rungs if rung != footprint and smaller_of(rung, footprint) == rung]
