"""The optimizer of one job in its place: the same one as alone, over whole rows instead of single tensors.

Only for optimizers that treat each number for itself (`giornata.protocol.joint.OPTIMIZERS`): padding is zeros without
a gradient, no zero moves another number, and it makes no difference where one tensor ends and the next begins. What
it remembers has the names and shapes of a job that trains alone.
"""

from collections.abc import Mapping

import torch

from giornata.diffusion.norm_limit import norm_limit
from giornata.diffusion.optimizer import AdapterOptimizer, Group
from giornata.diffusion.rates import Rate
from giornata.diffusion.slot_layout import Layout
from giornata.diffusion.slots import Slot
from giornata.protocol.specs import TrainSpec


class SlotOptimizer:
    """Has the interface of `giornata.diffusion.optimizer.AdapterOptimizer`, and does its work by one.

    That one knows a parameter for each group of a row. To the outside its tensors are cut into those of the layers.
    """

    def __init__(self, slot: Slot, spec: TrainSpec) -> None:
        self._slot = slot
        rows: dict[Rate, dict[str, torch.nn.Parameter]] = {}
        for name, (rate, _, _) in slot.segments.items():
            rows.setdefault(rate, {})[name] = slot.rows[name]
        groups = [
            Group(learning_rate=rate.learning_rate, parameters=parameters, stop_step=rate.stop_step)
            for rate, parameters in rows.items()
        ]
        self._rows = AdapterOptimizer(groups, spec, settle=norm_limit(slot.adapters.parameters, spec))
        slot.bind()  # the optimizer gave the rows gradients of their own

    def restore(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """See AdapterOptimizer.restore."""
        kept = dict(tensors)
        for key, row in self._rows.state().items():
            prefix, name = _split(key)
            if name not in self._slot.segments:
                continue
            filled = torch.zeros_like(row, device="cpu")
            views = self._views(name, filled)
            if all(prefix + each in tensors for each in views):
                for each, view in views.items():
                    view.copy_(tensors[prefix + each])
                kept[key] = filled
        self._rows.restore(step, kept)

    def state(self) -> dict[str, torch.Tensor]:
        """See AdapterOptimizer.state."""
        return self._cut(self._rows.state())

    def result(self) -> dict[str, torch.Tensor]:
        """See AdapterOptimizer.result."""
        return self._cut(self._rows.result())

    def step(self, step: int) -> float:
        """See AdapterOptimizer.step."""
        return self._rows.step(step)

    @property
    def scaled(self) -> torch.Tensor | None:
        """See AdapterOptimizer.scaled."""
        return self._rows.scaled

    def forget_gradients(self) -> None:
        """See AdapterOptimizer.forget_gradients."""
        self._rows.forget_gradients()

    @property
    def _layout(self) -> Layout:
        return self._slot.layout

    def _cut(self, rows: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for key, row in rows.items():
            prefix, name = _split(key)
            if name in self._slot.segments:
                found |= {prefix + each: view for each, view in self._views(name, row).items()}
            else:
                found[key] = row
        return found

    def _views(self, group: str, row: torch.Tensor) -> dict[str, torch.Tensor]:
        _, start, end = self._slot.segments[group]
        inside = [place for place in self._layout.places if start <= place.start < end]
        ranks = self._slot.ranks
        return {place.name: place.shifted(-start).view(row, ranks[place.layer]) for place in inside}


def _split(key: str) -> tuple[str, str]:
    """`optimizer.exp_avg.unet` → (`optimizer.exp_avg.`, `unet`)."""
    prefix, dot, name = key.rpartition(".")
    return prefix + dot, name
