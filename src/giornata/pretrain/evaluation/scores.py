"""Scores of drawn pictures: CLIP score and CMMD by a CLIP model, FID by an Inception network.

Shapes: N, M pictures or texts; D the width of CLIP's common space.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torchmetrics.image.fid import FrechetInceptionDistance
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from giornata.domain.errors import Fault, InvalidInput

CMMD_SIGMA, CMMD_SCALE = 10.0, 1000.0
AT_ONCE = 32
WHERE = "--inception"
_HINT = "the path of inception-2015-12-05.pt, or of another TorchScript network that is called like that one"
_TRIAL_SIDE_PX = 64


class Clip:
    """A CLIP model by its folder or hub id, frozen. Raises InvalidInput when it cannot be loaded."""

    def __init__(self, name: str) -> None:
        try:
            self._model: Any = CLIPModel.from_pretrained(name, use_safetensors=True).eval().requires_grad_(False)
            self._tokenizer = CLIPTokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            hint = "a folder or hub id of a CLIP model, such as openai/clip-vit-large-patch14-336"
            raise InvalidInput([Fault(where="--clip", message=f"{name}: {error}", hint=hint)]) from None
        side_px = int(self._model.config.vision_config.image_size)
        # With CLIP's own mean and deviation; the shorter side is scaled (bicubic), the middle cut out
        self._cut = CLIPImageProcessorPil(size={"shortest_edge": side_px}, crop_size=side_px)

    @torch.no_grad()
    def pictures(self, pictures: Sequence[Image.Image]) -> torch.Tensor:
        """Directions of the pictures, ND, each of length 1."""
        found = []
        for first in range(0, len(pictures), AT_ONCE):
            shown = self._cut(list(pictures[first : first + AT_ONCE]), return_tensors="pt")
            pooled_NH = self._model.vision_model(**shown).pooler_output
            found.append(self._model.visual_projection(pooled_NH))
        return functional.normalize(torch.cat(found).float(), dim=-1)

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> torch.Tensor:
        """Directions of the texts, ND, each of length 1. Long texts are cut."""
        most = self._model.config.text_config.max_position_embeddings
        words = self._tokenizer(list(texts), padding=True, truncation=True, max_length=most, return_tensors="pt")
        pooled_NH = self._model.text_model(**words).pooler_output
        return functional.normalize(self._model.text_projection(pooled_NH).float(), dim=-1)


def clip_score(pictures_ND: torch.Tensor, texts_ND: torch.Tensor) -> float:
    """100 · max(cos, 0), the mean over pairs (Hessel et al. 2021, arXiv 2104.08718, with the usual factor of 100)."""
    return float((100 * (pictures_ND * texts_ND).sum(dim=-1)).clamp(min=0).mean())


def cmmd(drawn_ND: torch.Tensor, real_MD: torch.Tensor) -> float:
    """Squared maximum mean discrepancy of directions under exp(-|a - b|² / 2σ²), σ = 10, times 1000; 0 for equal
    sets. Jayasumana et al. 2024, arXiv 2401.09603, who take CLIP ViT-L/14 at 336 pixels; figures of other models
    cannot be compared with theirs. Each set's mean is over all its pairs, a picture with itself included."""

    def likeness(a_ND: torch.Tensor, b_MD: torch.Tensor) -> torch.Tensor:
        return (-torch.cdist(a_ND.double(), b_MD.double()).square() / (2 * CMMD_SIGMA**2)).exp().mean()

    within = likeness(drawn_ND, drawn_ND) + likeness(real_MD, real_MD)
    return float(CMMD_SCALE * (within - 2 * likeness(drawn_ND, real_MD)))


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
        """Features NF of uint8 pictures."""
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
            pixels_HWC = torch.from_numpy(np.array(picture.convert("RGB")))
            metric.update(pixels_HWC.permute(2, 0, 1)[None], real=are_real)
    return float(metric.compute())
