"""FID: how far drawn pictures are from real ones, by the features that an Inception network sees in them.

The network is the TorchScript file that published figures are made with (`inception-2015-12-05.pt` of StyleGAN and
clean-fid), from where somebody put it; nothing is downloaded. It takes uint8 pictures of any size and scales them
itself. The distance is torchmetrics'.

Shapes: N pictures, F features.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance

from giornata.domain.errors import Fault, InvalidInput

WHERE = "--inception"
_HINT = "the path of inception-2015-12-05.pt, or of another TorchScript network that is called like that one"
_TRIAL_SIDE_PX = 64


class Inception(nn.Module):
    """The network of a TorchScript file, called with `return_features=True`. Raises InvalidInput when it is none."""

    def __init__(self, path: str) -> None:
        super().__init__()
        if not Path(path).is_file():
            raise InvalidInput([Fault(where=WHERE, message=f"{path} is not a file", hint=_HINT)])
        try:
            self._network: Any = torch.jit.load(path, map_location="cpu").eval()
            trial_NF = self(torch.zeros(2, 3, _TRIAL_SIDE_PX, _TRIAL_SIDE_PX, dtype=torch.uint8))
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise InvalidInput([Fault(where=WHERE, message=f"{path}: {why[0]}", hint=_HINT)]) from None
        if trial_NF.dim() != 2 or len(trial_NF) != 2:
            message = f"{path} makes of 2 pictures {tuple(trial_NF.shape)} and not (2, features)"
            raise InvalidInput([Fault(where=WHERE, message=message, hint=_HINT)])
        self.num_features = trial_NF.shape[1]

    @torch.no_grad()
    def forward(self, pictures_N3HW: torch.Tensor) -> torch.Tensor:
        """NF, of uint8."""
        features_NF: torch.Tensor = self._network(pictures_N3HW, return_features=True)
        return features_NF

    def check(self, pictures: int) -> None:
        """Raise InvalidInput when these are too few: their covariance would say more of the number than of them."""
        if pictures <= self.num_features:
            message = f"{pictures} pictures are too few for FID with {self.num_features} features"
            hint = f"more than {self.num_features}: --rows, and train.validation_rows of them held back"
            raise InvalidInput([Fault(where=WHERE, message=message, hint=hint)])


def fid(inception: Inception, drawn: Sequence[Image.Image], real: Sequence[Image.Image]) -> float:
    """Heusel et al. 2017, arXiv 1706.08500; 0 for equal sets. Raises InvalidInput for too few pictures."""
    inception.check(min(len(drawn), len(real)))
    metric = FrechetInceptionDistance(feature=inception, normalize=False)
    for pictures, are_real in ((drawn, False), (real, True)):
        for picture in pictures:  # they differ in size
            metric.update(_pixels(picture), real=are_real)
    return float(metric.compute())


def _pixels(picture: Image.Image) -> torch.Tensor:
    """13HW, uint8."""
    pixels_HWC = torch.from_numpy(np.array(picture.convert("RGB")))
    return pixels_HWC.permute(2, 0, 1)[None]
