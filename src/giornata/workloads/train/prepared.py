"""What comes out of an attempt's preparation."""

from dataclasses import dataclass

from giornata.diffusion.checkpoint import Header
from giornata.diffusion.determinism import Fingerprint
from giornata.workloads.train.caching import Supplies
from giornata.workloads.train.held_out import HeldOut
from giornata.workloads.train.layout import Layout
from giornata.workloads.train.material import Material


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is known of an attempt before the first step. `supplies` is None when no step is left, and `held_out` when
    nothing is held out either."""

    instances: Material
    data_hash: str
    header: Header | None
    first_step: int
    layout: Layout
    supplies: Supplies | None
    fingerprint: Fingerprint
    held_out: HeldOut | None = None

    def close(self) -> None:
        """Give the supplies back."""
        if self.supplies is not None:
            self.supplies.close()
        if self.held_out is not None:
            self.held_out.supplies.close()
