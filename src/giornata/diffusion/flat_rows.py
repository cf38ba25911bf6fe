"""Parameters that lie in no slot, one after the other in rows of their own: of DoRA, of LoKr, of convolutions.

An optimizer that may be given rows (`giornata.diffusion.optimizer_kinds`) then has a few tensors instead of hundreds.
"""

from collections.abc import Mapping
from itertools import accumulate, pairwise

import torch
from torch import nn

from giornata.diffusion.rates import Rate, by_rate
from giornata.protocol.specs import TrainSpec

APART = "_apart"
"""What a row's name has behind its kind of rate; a slot's rows have names without it."""


class FlatRows:
    """One row for each rate of `parameters`, of which they become views. All are float32.

    `rows` and their `rates` by the rows' names, `parameters` by those of `giornata.diffusion.lora.Adapters`. Whoever
    writes to a row or its gradient writes to the parameters in it.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], spec: TrainSpec) -> None:
        self.parameters = dict(parameters)
        self.rates: dict[str, Rate] = {}
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
        """Have the parameters' gradients be views of those of the rows."""
        for name, row in self.rows.items():
            if row.grad is not None:
                for member, view in self.views(name, row.grad).items():
                    self._members[name][member].grad = view

    def views(self, row: str, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        """A tensor that has a number for each of the row's, cut into those of its parameters."""
        members = self._members[row]
        ends = accumulate((each.numel() for each in members.values()), initial=0)
        return {
            name: numbers[start:end].view(each.shape)
            for (name, each), (start, end) in zip(members.items(), pairwise(ends), strict=True)
        }
