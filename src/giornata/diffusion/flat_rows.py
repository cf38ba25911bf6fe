"""Parameters that lie in no slot, one after the other in rows of their own: of DoRA, of LoKr, of convolutions.

An optimizer that may be given rows (`giornata.diffusion.optimizer_kinds`) then has a few tensors instead of hundreds.
"""

from collections.abc import Mapping
from itertools import accumulate, pairwise

import torch
from torch import nn

from giornata.diffusion.lora import group_of

APART = "_apart"
"""The end of a row's name, which begins with that of its group; a slot's rows have the names of groups."""


class FlatRows:
    """One row for each group of `parameters`, of which they become views. All are float32.

    `rows` by their names. Whoever writes to a row or its gradient writes to the parameters in it.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._members: dict[str, dict[str, nn.Parameter]] = {}
        for name, parameter in parameters.items():
            self._members.setdefault(group_of(name) + APART, {})[name] = parameter
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
