"""The optimizer of one job over whole rows instead of single tensors: those of its place, and what lies in no place.

Only for optimizers whose kind is `on_rows`: padding is zeros without a gradient, no zero moves another number, and it
makes no difference where one tensor ends and the next begins. What the optimizer remembers has the names and shapes
of a job without rows.
"""

from collections.abc import Mapping

import torch

from giornata.diffusion.flat_rows import APART, FlatRows
from giornata.diffusion.optimizer import AdapterOptimizer, Group
from giornata.diffusion.optimizer_kinds import KINDS
from giornata.diffusion.slot_layout import TEXT_GROUP, UNET_GROUP
from giornata.diffusion.slots import Slot
from giornata.diffusion.tokens import NewTokens, learning_steps
from giornata.protocol.specs import TrainSpec


class SlotOptimizer:
    """Has the interface of `giornata.diffusion.optimizer.AdapterOptimizer`, and does its work by one.

    That one knows a parameter for each row, and each new token's tensor. To the outside a row's tensors are cut into
    those of the layers.
    """

    def __init__(
        self, slot: Slot | None, spec: TrainSpec, *, apart: FlatRows | None = None, tokens: NewTokens | None = None
    ) -> None:
        self._slot, self._apart = slot, FlatRows({}) if apart is None else apart
        self._stop, self._flat = spec.stop_text_encoder_training, KINDS[spec.optimizer].flat
        self._named = {**({} if slot is None else slot.rows), **self._apart.rows}
        self._rows = AdapterOptimizer(self._groups(spec, tokens), spec)
        if slot is not None:
            slot.bind()  # the optimizer gave the rows gradients of their own
        self._apart.bind()

    def restore(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """See AdapterOptimizer.restore."""
        kept = dict(tensors)
        for key, row in self._rows.state().items():
            prefix, name = _split(key)
            if name not in self._named:
                continue
            filled = torch.zeros_like(row, device="cpu")
            views = self._views(name, filled)
            if all(prefix + each in tensors for each in views):
                for each, view in views.items():
                    view.copy_(tensors[prefix + each].view_as(view))
                kept[key] = filled
        self._rows.restore(step, kept)

    def state(self) -> dict[str, torch.Tensor]:
        """See AdapterOptimizer.state."""
        return self._cut(self._rows.state())

    def result(self) -> dict[str, torch.Tensor]:
        """See AdapterOptimizer.result."""
        return self._cut(self._rows.result())

    def step(self, step: int) -> float:
        """See AdapterOptimizer.step. The text encoders' gradients count for nothing once they have stopped."""
        return self._rows.step(step)

    def gradients(self) -> list[torch.Tensor]:
        """See AdapterOptimizer.gradients."""
        return self._rows.gradients()

    def forget_gradients(self) -> None:
        """See AdapterOptimizer.forget_gradients."""
        self._rows.forget_gradients()

    def _groups(self, spec: TrainSpec, tokens: NewTokens | None) -> list[Group]:
        """In the order that they have without rows: checkpoints number them."""
        rates = {TEXT_GROUP: spec.text_encoder_lr, UNET_GROUP: spec.learning_rate}
        found = []
        for name, rate in rates.items():
            rows = {row: each for row, each in self._named.items() if row.removesuffix(APART) == name}
            stop = self._stop if name == TEXT_GROUP else None
            found += [Group(learning_rate=rate, parameters=rows, stop_step=stop)] if rows else []
        if tokens is not None and tokens.rows:
            words, steps = dict(tokens.rows), learning_steps(spec)
            rate = spec.text_encoder_lr
            found.append(Group(learning_rate=rate, parameters=words, stop_step=steps, settle=tokens.settle))
        return found

    def _cut(self, rows: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for key, row in rows.items():
            prefix, name = _split(key)
            if name not in self._named:
                found[key] = row
                continue
            flat = any(prefix.endswith(f".{each}.") for each in self._flat)
            for each, view in self._views(name, row).items():
                found[prefix + each] = view.flatten() if flat else view
        return found

    def _views(self, name: str, row: torch.Tensor) -> dict[str, torch.Tensor]:
        if name in self._apart.rows:
            return self._apart.views(name, row)
        return {} if self._slot is None else self._slot.cut(name, row)


def _split(key: str) -> tuple[str, str]:
    """`optimizer.exp_avg.unet` → (`optimizer.exp_avg.`, `unet`)."""
    prefix, dot, name = key.rpartition(".")
    return prefix + dot, name
