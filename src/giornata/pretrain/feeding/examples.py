"""Rows as they are fed, to what the UNet is trained on: every draw a function of (seed, phase, epoch, key).

Which trainer has a row, in which step, and in how many pieces its batch is computed changes none of it.

Shapes: B rows; C = 4, H, W = pixels / 8; L tokens; D, P widths of the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from giornata.diffusion import randomness
from giornata.diffusion.captions import Embedding
from giornata.diffusion.objective import NoisyBatch
from giornata.pretrain.feeding.batch import Batch

MOST_LOGVAR = 20.0
"""As diffusers bounds it: exp of a broken one would be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyPrompt:
    """What the text encoders make of "", float16 or float32: what a row gets whose caption is dropped."""

    prompt_LD: torch.Tensor
    pooled_P: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What one forward and backward pass computes. `weight` 0 only takes part. `places` are the rows' (phase, epoch,
    key). Latents and noise are float32, the text as it was fed: whoever computes casts it, on the device."""

    noisy: NoisyBatch
    embedding: Embedding
    weight: float = 1.0
    places: Sequence[tuple[int, int, str]] = ()

    def to(self, device: torch.device) -> "Example":
        """On the device."""
        pooled_BP = self.embedding.pooled_BP
        moved = Embedding(
            prompt_BLD=self.embedding.prompt_BLD.to(device, non_blocking=True),
            pooled_BP=None if pooled_BP is None else pooled_BP.to(device, non_blocking=True),
        )
        return replace(self, noisy=self.noisy.to(device), embedding=moved)

    def pinned(self) -> "Example":
        """In memory from which a GPU can copy by itself."""
        pooled_BP = self.embedding.pooled_BP
        pinned = Embedding(
            prompt_BLD=self.embedding.prompt_BLD.pin_memory(),
            pooled_BP=None if pooled_BP is None else pooled_BP.pin_memory(),
        )
        return replace(self, noisy=self.noisy.pinned(), embedding=pinned)

    def __len__(self) -> int:
        return len(self.noisy.timesteps_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Makes examples of batches. `scaling` is the encoder's (shift, factor); `purpose` keeps uses apart: rows of
    validation have draws of their own, the same ones every time."""

    seed: int
    timesteps: int
    scaling: tuple[float, float]
    proportion_empty_prompts: float = 0.0
    empty: EmptyPrompt | None = None
    purpose: str = "pretrain"

    def __post_init__(self) -> None:
        if self.proportion_empty_prompts > 0 and self.empty is None:
            raise ValueError("captions are to be dropped, and what an empty one is encoded to was not given")

    def example(self, batch: Batch, phase: int) -> Example:
        """The batch with its noise."""
        places = [(phase, epoch, key) for epoch, key in zip(batch.epochs, batch.keys, strict=True)]
        noisy = NoisyBatch(
            latents_BCHW=self._latents(batch, places),
            noise_BCHW=self._normal("noise", places, batch.mean_BCHW.shape[1:]),
            timesteps_B=self._timesteps(places),
            time_ids_B6=batch.time_ids_B6.float(),
        )
        return Example(noisy=noisy, embedding=self._embedding(batch, places), places=places)

    def _latents(self, batch: Batch, places: Sequence[tuple[int, int, str]]) -> torch.Tensor:
        shift, factor = self.scaling
        deviation_BCHW = batch.logvar_BCHW.float().clamp(max=MOST_LOGVAR).mul_(0.5).exp_()
        latents_BCHW = self._normal("posterior", places, batch.mean_BCHW.shape[1:])
        # In place: memory that is new to the process costs as much as the arithmetic.
        return latents_BCHW.mul_(deviation_BCHW).add_(batch.mean_BCHW).sub_(shift).mul_(factor)

    def _normal(self, what: str, places: Sequence[tuple[int, int, str]], shape: Sequence[int]) -> torch.Tensor:
        return randomness.normals(self.seed, f"{self.purpose}/{what}", places, shape=tuple(shape))

    def _timesteps(self, places: Sequence[tuple[int, int, str]]) -> torch.Tensor:
        purpose = f"{self.purpose}/timestep"
        drawn = [randomness.integer(self.seed, purpose, *place, low=0, high=self.timesteps) for place in places]
        return torch.tensor(drawn, dtype=torch.int64)

    def _embedding(self, batch: Batch, places: Sequence[tuple[int, int, str]]) -> Embedding:
        prompt_BLD, pooled_BP = batch.prompt_BLD, batch.pooled_BP
        if self.empty is not None and self.proportion_empty_prompts:
            dropped = [number for number, place in enumerate(places) if self._drops(place)]
            prompt_BLD = _replaced(prompt_BLD, dropped, self.empty.prompt_LD)
            if pooled_BP is not None and self.empty.pooled_P is not None:
                pooled_BP = _replaced(pooled_BP, dropped, self.empty.pooled_P)
        return Embedding(prompt_BLD=prompt_BLD, pooled_BP=pooled_BP)

    def _drops(self, place: tuple[int, int, str]) -> bool:
        drawn = randomness.uniform(self.seed, f"{self.purpose}/caption-dropout", *place, shape=(1,))
        return float(drawn) < self.proportion_empty_prompts


def _replaced(rows: torch.Tensor, numbers: Sequence[int], by: torch.Tensor) -> torch.Tensor:
    """The rows, with `by` instead of those of these numbers, in the wider type of both; themselves, uncopied, where
    nothing is to be changed."""
    wide = torch.promote_types(rows.dtype, by.dtype)
    if not numbers:
        return rows.to(wide)
    replaced = rows.to(wide, copy=True)
    replaced[list(numbers)] = by.to(wide)
    return replaced


def pieces(batch: Batch, most: int) -> Iterator[Batch]:
    """The batch in parts of at most `most` rows, in order."""
    for start in range(0, len(batch), most):
        part = slice(start, start + most)
        yield Batch(
            uses=batch.uses[part],
            keys=batch.keys[part],
            epochs=batch.epochs[part],
            mean_BCHW=batch.mean_BCHW[part],
            logvar_BCHW=batch.logvar_BCHW[part],
            prompt_BLD=batch.prompt_BLD[part],
            pooled_BP=None if batch.pooled_BP is None else batch.pooled_BP[part],
            time_ids_B6=batch.time_ids_B6[part],
        )


def blank(*, rows: int, side: int, tokens: int, text: int, pooled: int | None) -> Example:
    """An example of zeros that weighs nothing, for a trainer that has to take part without rows."""
    zeros_BCHW = torch.zeros(rows, 4, side, side)
    noisy = NoisyBatch(
        latents_BCHW=zeros_BCHW,
        noise_BCHW=zeros_BCHW,
        timesteps_B=torch.zeros(rows, dtype=torch.int64),
        time_ids_B6=torch.zeros(rows, 6),
    )
    embedding = Embedding(
        prompt_BLD=torch.zeros(rows, tokens, text),
        pooled_BP=None if pooled is None else torch.zeros(rows, pooled),
    )
    return Example(noisy=noisy, embedding=embedding, weight=0.0)
