"""ControlNets beside a pass of the UNet: what they add to its skip connections, row by row.

Each ControlNet runs once for all rows that it steers, or once for each length of their prompts: it takes no mask of
tokens. A row without ControlNet is given zeros.

Shapes: B rows of a pass; K of them are steered by one ControlNet; L tokens; D the UNet's cross-attention width; C, H,
W of the latents.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giornata.diffusion.sampling.rows import RowControl


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """The inputs of one pass of the UNet. `mask_BL` is None where all prompts are equally long."""

    sample_BCHW: torch.Tensor
    timesteps_B: torch.Tensor
    hidden_BLD: torch.Tensor
    mask_BL: torch.Tensor | None
    added: Mapping[str, torch.Tensor] | None

    def lengths(self) -> list[int]:
        """Return the number of tokens of each row's prompt."""
        if self.mask_BL is None:
            return [self.hidden_BLD.shape[1]] * self.hidden_BLD.shape[0]
        return [int(count) for count in self.mask_BL.sum(dim=1).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """The tensors that ControlNets add to the UNet's skip connections and middle block, for all rows of a pass."""

    down: tuple[torch.Tensor, ...]
    middle_BCHW: torch.Tensor

    def of_unet(self) -> dict[str, Any]:
        """Return the arguments of the UNet."""
        return {"down_block_additional_residuals": self.down, "mid_block_additional_residual": self.middle_BCHW}


def control_residuals(acting: Sequence[Sequence[RowControl]], given: PassInputs) -> Residuals:
    """Return the sum of what the ControlNets of each row add. `acting` holds those of each row of the pass; a row's
    first ControlNet is added before its second, as diffusers does it. Raises ValueError when no row has one."""
    total: Residuals | None = None
    lengths = given.lengths()
    for turn in range(max(len(controls) for controls in acting)):
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, controls in enumerate(acting):
            if turn < len(controls):
                groups[id(controls[turn].model), lengths[row]].append(row)
        for (_, length), rows in groups.items():
            found = _forward([acting[row][turn] for row in rows], rows, length, given)
            total = _summed(total, found, rows, len(acting))
    if total is None:
        raise ValueError("no row has a ControlNet that acts")
    return total


def _forward(controls: Sequence[RowControl], rows: Sequence[int], length: int, given: PassInputs) -> Residuals:
    """Run one ControlNet for the rows that it steers. Each row has its own weight."""
    device = given.sample_BCHW.device
    of_all = len(rows) == len(given.sample_BCHW)
    at = slice(None) if of_all else torch.tensor(rows, device=device)
    weights_K111 = torch.tensor([control.weight for control in controls], device=device).view(-1, 1, 1, 1)
    down, middle = controls[0].model(
        given.sample_BCHW[at],
        given.timesteps_B[at],
        encoder_hidden_states=given.hidden_BLD[at, :length],
        controlnet_cond=torch.cat([control.image_13HW for control in controls]),
        added_cond_kwargs=None if given.added is None else {name: each[at] for name, each in given.added.items()},
        return_dict=False,
    )
    scaled = [(each * weights_K111).to(each.dtype) for each in (*down, middle)]
    return Residuals(down=tuple(scaled[:-1]), middle_BCHW=scaled[-1])


def _summed(total: Residuals | None, found: Residuals, rows: Sequence[int], of: int) -> Residuals:
    """Add what was found for some of the rows to what all of them have so far."""
    if total is None and len(rows) == of:
        return found
    at = torch.tensor(rows, device=found.middle_BCHW.device)
    parts = (*found.down, found.middle_BCHW)
    if total is None:
        before = [each.new_zeros(of, *each.shape[1:]) for each in parts]
    else:
        before = [*total.down, total.middle_BCHW]
    added = [old.index_add(0, at, new) for old, new in zip(before, parts, strict=True)]
    return Residuals(down=tuple(added[:-1]), middle_BCHW=added[-1])
