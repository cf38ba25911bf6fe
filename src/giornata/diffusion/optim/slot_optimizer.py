"""The optimizer of one job over whole rows instead of single tensors: the rows of its place, and of tensors in no
place.

Only for optimizers whose kind is `on_rows`: padding is zeros without a gradient, no zero moves another number, and it
makes no difference where one tensor ends and the next begins. The optimizer's state has the names and shapes of a job
without rows.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import nn

from giornata.diffusion.adapter.adapter_plan import TOKENS, LearningRate, by_rate, rate_of
from giornata.diffusion.adapter.slots import AdapterSlot
from giornata.diffusion.adapter.tokens import NewTokens
from giornata.diffusion.optim.optimizer import AdapterOptimizer, ParameterGroup, norm_limit
from giornata.diffusion.optim.optimizer_kinds import KINDS
from giornata.protocol.specs import TrainSpec

# ---- flat rows: the parameters of DoRA, LoKr and convolutions, which lie in no slot
#
# An optimizer that may be given rows (`giornata.diffusion.optim.optimizer_kinds`) then has a few tensors instead of
# hundreds.

APART = "_apart"
"""The ending of a row's name behind its kind of rate; a slot's rows have names without this ending."""


class FlatRows:
    """One row for each rate of `parameters`, of which they become views. All are float32.

    `rows` and their `rates` are by the rows' names, `parameters` by those of
    `giornata.diffusion.adapter.lora.Adapters`. A write to a row or its gradient writes to the parameters in it.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], spec: TrainSpec) -> None:
        self.parameters = dict(parameters)
        self.rates: dict[str, LearningRate] = {}
        self._members: dict[str, dict[str, nn.Parameter]] = {}
        for number, (rate, names) in enumerate(by_rate(spec, parameters).items()):
            row = rate.kind + APART
            row = f"{row}@{number}" if row in self.rates else row
            self.rates[row], self._members[row] = rate, {name: parameters[name] for name in names}
        self.rows: dict[str, nn.Parameter] = {}
        for row, members in self._members.items():
            self.rows[row] = nn.Parameter(torch.cat([each.detach().flatten() for each in members.values()]))
            for name, view in self.views(row, self.rows[row].detach()).items():
                members[name].data = view

    def bind(self) -> None:
        """Make the parameters' gradients views of the rows' gradients."""
        for name, row in self.rows.items():
            if row.grad is not None:
                for member, view in self.views(name, row.grad).items():
                    self._members[name][member].grad = view

    def views(self, row: str, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        """Cut a tensor that has a number for each of the row's into those of its parameters."""
        members = self._members[row]
        ends = accumulate((each.numel() for each in members.values()), initial=0)
        return {
            name: numbers[start:end].view(each.shape)
            for (name, each), (start, end) in zip(members.items(), pairwise(ends), strict=True)
        }


class SlotOptimizer:
    """An optimizer with the interface of `giornata.diffusion.optim.optimizer.AdapterOptimizer`, which wraps one over
    rows.

    The wrapped optimizer knows a parameter for each row, and each new token's tensor. To the outside a row's tensors
    are cut into those of the layers.
    """

    def __init__(
        self,
        slot: AdapterSlot | None,
        spec: TrainSpec,
        *,
        apart: FlatRows | None = None,
        tokens: NewTokens | None = None,
    ) -> None:
        self._slot, self._apart = slot, FlatRows({}, spec) if apart is None else apart
        self._flat = KINDS[spec.optimizer].flat
        self._named = {**({} if slot is None else slot.rows), **self._apart.rows}
        parameters = ({} if slot is None else slot.adapters.parameters) | self._apart.parameters
        settle = norm_limit(parameters, spec)
        self._rows = AdapterOptimizer(self._groups(spec, sorted(parameters), tokens), spec, settle=settle)
        if slot is not None:
            slot.bind()  # the optimizer gave the rows gradients of their own
        self._apart.bind()

    def restore(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the state, as `AdapterOptimizer.restore` does, from tensors named as in a job without rows."""
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
        """Return `AdapterOptimizer.state`, with the names and shapes of a job without rows."""
        return self._cut(self._rows.state())

    def result(self) -> dict[str, torch.Tensor]:
        """Return `AdapterOptimizer.result`, with the names and shapes of a job without rows."""
        return self._cut(self._rows.result())

    def step(self, step: int) -> float:
        """Update all rows, as `AdapterOptimizer.step` does."""
        return self._rows.step(step)

    @property
    def scaled(self) -> torch.Tensor | None:
        """Return the count of shortened layers, as `AdapterOptimizer.scaled` does."""
        return self._rows.scaled

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of all rows, as `AdapterOptimizer.gradients` does."""
        return self._rows.gradients()

    def forget_gradients(self) -> None:
        """Set the gradients of all rows to zero."""
        self._rows.forget_gradients()

    def _groups(self, spec: TrainSpec, names: Sequence[str], tokens: NewTokens | None) -> list[ParameterGroup]:
        """Return the groups in the order that they have without rows: checkpoints number them. `names` are those of
        the adapter's tensors, sorted."""
        rates = {name: rate for name, (rate, _, _) in ({} if self._slot is None else self._slot.segments).items()}
        rates |= self._apart.rates
        found = []
        for rate in by_rate(spec, names):
            rows = {name: row for name, row in self._named.items() if rates[name] == rate}
            found.append(ParameterGroup(learning_rate=rate.learning_rate, parameters=rows, stop_step=rate.stop_step))
        if tokens is not None and tokens.rows:
            words, rate = dict(tokens.rows), rate_of(spec, f"{TOKENS}.")
            stop, settle = rate.stop_step, tokens.settle
            found.append(
                ParameterGroup(learning_rate=rate.learning_rate, parameters=words, stop_step=stop, settle=settle)
            )
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
    """Split a key: `optimizer.exp_avg.unet` → (`optimizer.exp_avg.`, `unet`)."""
    prefix, dot, name = key.rpartition(".")
    return prefix + dot, name
