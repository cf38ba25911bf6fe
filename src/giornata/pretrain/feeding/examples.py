"""Turn batches into the examples of a step: every draw is a function of (seed, phase, epoch, key).

The draws do not depend on the trainer, on the step, or on the number of passes of a batch.

Shapes: B rows; C = 4, H, W = pixels / 8; L tokens; D, P widths of the text.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.pool import AsyncResult, ThreadPool
from typing import Any

import torch

from giornata.diffusion.draws import randomness
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.optim.objective import NoisyBatch
from giornata.pretrain.feeding.feed import LATENT_CHANNELS, TOKENS, Batch, Feed
from giornata.pretrain.feeding.ledger import Use

MOST_LOGVAR = 20.0
"""diffusers has the same bound: exp of a broken value would be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The input of one forward and backward pass. An example of `weight` 0 takes part and changes nothing.

    Latents and noise are float32, the text has its type.
    """

    noisy: NoisyBatch
    embedding: Embedding
    weight: float = 1.0

    def to(self, device: torch.device, *, text_dtype: torch.dtype) -> "Example":
        # The text is copied as it is and cast there: it may have half of the bytes
        embedding = self.embedding.each(lambda text: text.to(device, non_blocking=True).to(text_dtype))
        return replace(self, noisy=self.noisy.to(device), embedding=embedding)

    def pinned(self) -> "Example":
        """The example in memory from which a GPU can copy by itself."""
        return replace(self, noisy=self.noisy.pinned(), embedding=self.embedding.each(torch.Tensor.pin_memory))

    def __len__(self) -> int:
        return len(self.noisy.timesteps_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleDraws:
    """Makes examples of batches. `scaling` is the encoder's (shift, factor). `empty` is the embedding of "", one row
    in float16 or float32, for rows whose caption is dropped.

    `purpose` keeps draws apart: rows for validation have draws that training has not, the same ones every time.
    """

    seed: int
    timesteps: int
    scaling: tuple[float, float]
    proportion_empty_prompts: float = 0.0
    empty: Embedding | None = None
    purpose: str = "pretrain"

    def __post_init__(self) -> None:
        if self.proportion_empty_prompts > 0 and self.empty is None:
            raise ValueError("captions are dropped, and the embedding of an empty one was not given")

    def example(self, batch: Batch, phase: int) -> Example:
        places = [(phase, epoch, key) for epoch, key in zip(batch.epochs, batch.keys, strict=True)]
        noisy = NoisyBatch(
            latents_BCHW=self._latents(batch, places),
            noise_BCHW=self._normal("noise", places, batch.mean_BCHW.shape[1:]),
            timesteps_B=self._timesteps(places),
            time_ids_B6=batch.time_ids_B6.float(),
        )
        return Example(noisy=noisy, embedding=self._embedding(batch, places))

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
            prompt_BLD = _replaced(prompt_BLD, dropped, self.empty.prompt_BLD)
            if pooled_BP is not None and self.empty.pooled_BP is not None:
                pooled_BP = _replaced(pooled_BP, dropped, self.empty.pooled_BP)
        return Embedding(prompt_BLD=prompt_BLD, pooled_BP=pooled_BP)

    def _drops(self, place: tuple[int, int, str]) -> bool:
        drawn = randomness.uniform(self.seed, f"{self.purpose}/caption-dropout", *place, shape=(1,))
        return float(drawn) < self.proportion_empty_prompts


def _replaced(rows: torch.Tensor, numbers: Sequence[int], by: torch.Tensor) -> torch.Tensor:
    """The rows with `by` in place of these numbers, in the wider type of both. Without numbers nothing is copied."""
    wide = torch.promote_types(rows.dtype, by.dtype)
    if not numbers:
        return rows.to(wide)
    replaced = rows.to(wide, copy=True)
    replaced[list(numbers)] = by.to(wide)
    return replaced


def pieces(batch: Batch, most: int) -> Iterator[Batch]:
    """The batch in parts of at most `most` rows, in order."""
    for start in range(0, len(batch), most):
        part: dict[str, Any] = {each.name: getattr(batch, each.name) for each in fields(batch)}
        cut = slice(start, start + most)
        part |= {name: value[cut] for name, value in part.items() if value is not None}
        yield Batch(**part)


def blank(widths: tuple[int, int | None], *, rows: int, side: int) -> Example:
    """An example of zeros and weight 0, for a trainer that takes part without rows. `widths` are D and P."""
    text, pooled = widths
    zeros_BCHW = torch.zeros(rows, LATENT_CHANNELS, side, side)
    noisy = NoisyBatch(
        latents_BCHW=zeros_BCHW,
        noise_BCHW=zeros_BCHW,
        timesteps_B=torch.zeros(rows, dtype=torch.int64),
        time_ids_B6=torch.zeros(rows, 6),
    )
    embedding = Embedding(
        prompt_BLD=torch.zeros(rows, TOKENS, text),
        pooled_BP=None if pooled is None else torch.zeros(rows, pooled),
    )
    return Example(noisy=noisy, embedding=embedding, weight=0.0)


# ---- a trainer's share of a step ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Portioned:
    """One trainer's share of a step, in passes of at most the micro-batch."""

    examples: Sequence[Example]
    uses: Sequence[Use]
    unreadable: Sequence[Use]

    @property
    def empty(self) -> bool:
        """True when the trainer's stream has ended."""
        return not self.uses and not self.unreadable


NOTHING = Portioned(examples=(), uses=(), unreadable=())


def portioned(feed: Feed, draws: ExampleDraws, phase: int, micro_batch: int, device: torch.device) -> Portioned:
    """A step's examples of a feed."""
    return Portioned(
        examples=bound_for(device, examples_of(feed.batches, draws, micro_batch, phase=phase)),
        uses=[use for batch in feed.batches for use in batch.uses],
        unreadable=list(feed.unreadable),
    )


def bound_for(device: torch.device, examples: Sequence[Example]) -> list[Example]:
    """The examples in memory from which this device can copy while it computes."""
    return [each.pinned() if device.type == "cuda" else each for each in examples]


def examples_of(batches: Iterable[Batch], draws: ExampleDraws, micro_batch: int, *, phase: int = 0) -> list[Example]:
    """Examples of at most `micro_batch` rows. Rows for validation have the draws of phase 0 in every phase."""
    return [draws.example(part, phase) for batch in batches for part in pieces(batch, micro_batch)]


def filled(examples: Sequence[Example], blank: Example, count: int) -> list[Example]:
    """`count` examples, so that all trainers make as many passes. Blank ones come first."""
    return [blank] * (count - len(examples)) + list(examples)


class Prefetcher:
    """Makes the next step's examples in a thread while this step is computed, one item ahead.

    An item that is not taken is dropped at the end. The thread is a daemon: a stuck stream does not keep the process.
    """

    def __init__(
        self, stream: Iterator[Feed], make: Callable[[Feed], Portioned], clock_s: Callable[[], float]
    ) -> None:
        self._stream, self._make, self._clock_s = stream, make, clock_s
        self._thread = ThreadPool(1)
        self._coming: AsyncResult[Portioned | None] | None = self._thread.apply_async(self._next)

    def take(self) -> tuple[Portioned | None, float]:
        """The next item, None after the last, and the seconds of waiting for it. Raises the stream's exceptions."""
        coming, self._coming = self._coming, None
        if coming is None:
            return None, 0.0
        began_s = self._clock_s()
        found = coming.get()
        waited_s = self._clock_s() - began_s
        if found is not None:
            self._coming = self._thread.apply_async(self._next)
        return found, waited_s

    def close(self) -> None:
        """End the thread after its item."""
        self._coming = None
        self._thread.close()

    def _next(self) -> Portioned | None:
        fed = next(self._stream, None)
        return None if fed is None else self._make(fed)
