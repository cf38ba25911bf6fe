"""What is known of an attempt before its first step."""

from dataclasses import dataclass

from giornata.diffusion.checkpoint import Header
from giornata.diffusion.determinism import Fingerprint
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.caching import Supplies
from giornata.workloads.train.held_out import HeldOut
from giornata.workloads.train.layout import Layout
from giornata.workloads.train.material import Material


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is known of an attempt before the first step. `supplies` is None when no step is left."""

    instances: Material
    data_hash: str
    header: Header | None
    first_step: int
    layout: Layout
    supplies: Supplies | None
    fingerprint: Fingerprint
    held_out: HeldOut | None = None


def images_per_step(spec: TrainSpec) -> int:
    """Pictures that one optimizer step looks at, class pictures included."""
    halves = 2 if spec.with_prior_preservation and not spec.prior_prediction else 1
    return spec.train_batch_size * spec.gradient_accumulation_steps * halves
