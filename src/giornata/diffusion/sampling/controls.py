"""ControlNets beside a pass of the UNet: what they add to its skip connections, row by row.

Each ControlNet runs once for all rows that it steers, or once for each length of their prompts: it takes no mask of
tokens. A row without ControlNet is given zeros.

Shapes: as in `denoising`; K of the B rows are steered by one ControlNet.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giornata.diffusion.sampling.rows import RowControl


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """What ControlNets add to the UNet's skip connections and to its middle block, for all rows of a pass."""

    down: tuple[torch.Tensor, ...]
    middle_BCHW: torch.Tensor

    def of_unet(self) -> dict[str, Any]:
        """Return the arguments of the UNet."""
        return {"down_block_additional_residuals": self.down, "mid_block_additional_residual": self.middle_BCHW}


def control_residuals(
    acting: Sequence[Sequence[RowControl]],
    sample_BCHW: torch.Tensor,
    timesteps_B: torch.Tensor,
    hidden_BLD: torch.Tensor,
    mask_BL: torch.Tensor | None,
    added: Mapping[str, torch.Tensor] | None,
) -> Residuals:
    """Return the sum of what the ControlNets of each row add. `acting` holds those of each row of the pass; a row's
    first ControlNet is added before its second, as diffusers does it."""
    total: Residuals | None = None
    lengths = _lengths(hidden_BLD, mask_BL)
    for turn in range(max(len(controls) for controls in acting)):
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, controls in enumerate(acting):
            if turn < len(controls):
                groups[id(controls[turn].model), lengths[row]].append(row)
        for (_, length), rows in groups.items():
            controls = [acting[row][turn] for row in rows]
            found = _forward(controls, rows, length, sample_BCHW, timesteps_B, hidden_BLD, added)
            total = _summed(total, found, rows, len(acting))
    if total is None:
        raise ValueError("no row has a ControlNet that acts")
    return total


def _lengths(hidden_BLD: torch.Tensor, mask_BL: torch.Tensor | None) -> list[int]:
    if mask_BL is None:
        return [hidden_BLD.shape[1]] * hidden_BLD.shape[0]
    return [int(count) for count in mask_BL.sum(dim=1).tolist()]


def _forward(
    controls: Sequence[RowControl],
    rows: Sequence[int],
    length: int,
    sample_BCHW: torch.Tensor,
    timesteps_B: torch.Tensor,
    hidden_BLD: torch.Tensor,
    added: Mapping[str, torch.Tensor] | None,
) -> Residuals:
    """Run one ControlNet for the rows that it steers. Each row has its own weight."""
    at = torch.tensor(rows, device=sample_BCHW.device)
    weights_K111 = torch.tensor([control.weight for control in controls], device=sample_BCHW.device).view(-1, 1, 1, 1)
    down, middle = controls[0].model(
        sample_BCHW[at],
        timesteps_B[at],
        encoder_hidden_states=hidden_BLD[at, :length],
        controlnet_cond=torch.cat([control.image_13HW for control in controls]),
        added_cond_kwargs=None if added is None else {name: value[at] for name, value in added.items()},
        return_dict=False,
    )
    scaled = [(each * weights_K111).to(each.dtype) for each in (*down, middle)]
    return Residuals(down=tuple(scaled[:-1]), middle_BCHW=scaled[-1])


def _summed(total: Residuals | None, found: Residuals, rows: Sequence[int], of: int) -> Residuals:
    """Add what was found for some rows to what all rows have so far."""
    if total is None and len(rows) == of:
        return found
    at = torch.tensor(rows, device=found.middle_BCHW.device)
    parts = (*found.down, found.middle_BCHW)
    before = (
        [each.new_zeros(of, *each.shape[1:]) for each in parts] if total is None else [*total.down, total.middle_BCHW]
    )
    added = [old.index_add(0, at, new) for old, new in zip(before, parts, strict=True)]
    return Residuals(down=tuple(added[:-1]), middle_BCHW=added[-1])
