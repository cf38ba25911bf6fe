"""Captions to what the UNet attends to.

Shapes: B captions; L = 77 tokens; D the UNet's cross-attention width (2048 for SDXL: 768 + 1280 side by side; 768
for Stable Diffusion 1.5); P the width of the pooled embedding (1280), where there is one.

Captions are used to the letter: quotes, spaces and any script. Nothing is ever cut for an adapter: a caption that
does not fit into the text encoders is refused, by name and number of tokens.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giornata.diffusion.families import SDXL, Family
from giornata.diffusion.order import Role
from giornata.diffusion.randomness import permutation, uniform
from giornata.domain.errors import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """What conditions the UNet on a batch of captions. `pooled_BP` is None where the family has none."""

    prompt_BLD: torch.Tensor
    pooled_BP: torch.Tensor | None


def too_long(captions: Iterable[tuple[str, str]], tokenizers: Sequence[Any]) -> list[Fault]:
    """A fault for every (where, caption) that has more tokens than fit, start and end marks included."""
    faults = []
    for where, caption in captions:
        for number, tokenizer in enumerate(tokenizers, start=1):
            count, limit = len(tokenizer(caption, verbose=False).input_ids), tokenizer.model_max_length
            if count > limit:
                message = f"the caption has {count} tokens for text encoder {number}, and {limit} fit"
                faults.append(Fault(where=where, message=message, hint="shorten it; captions are never cut silently"))
                break
    return faults


def encode(
    tokenizers: Sequence[Any],
    text_encoders: Sequence[Any],
    captions: Sequence[str],
    *,
    family: Family = SDXL,
    truncation: bool = False,
) -> Embedding:
    """As `encode_prompt` of the family's pipeline: the hidden layers that it uses of all encoders side by side, and
    the pooled, projected output of the last, if it uses that. Gradients flow if the caller lets them.

    With `truncation` captions that do not fit are cut, as pre-training does it with texts that nobody wrote for a
    text encoder; adapters' captions never are.
    """
    hidden, pooled_BP = [], None
    for tokenizer, encoder in zip(tokenizers, text_encoders, strict=True):
        tokens_BL = tokenizer(
            list(captions),
            padding="max_length",
            max_length=tokenizer.model_max_length,
            truncation=truncation,
            return_tensors="pt",
        ).input_ids
        output = encoder(_moved(tokens_BL, encoder.device), output_hidden_states=True)
        layer = family.hidden_layer
        hidden.append(output.last_hidden_state if layer is None else output.hidden_states[layer])
        pooled_BP = output[0] if family.pooled else None
    if family.pooled and (pooled_BP is None or pooled_BP.ndim != 2):
        raise TypeError(f"the last text encoder gives no pooled output; {family.title} needs one with a projection")
    return Embedding(prompt_BLD=torch.cat(hidden, dim=-1), pooled_BP=pooled_BP)


def _moved(tokens_BL: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device. On its way to a GPU it waits for nothing that is under way there."""
    if device.type != "cuda":
        return tokens_BL.to(device)
    return tokens_BL.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How a subject's captions are said: functions of (seed, step, micro-batch, place). Class pictures' stay as they
    are, for they say what is to be kept.

    `separator` stands between the parts; the first `kept` ones stay where they are when `shuffled`.
    """

    seed: int = 0
    shuffled: bool = False
    kept: int = 0
    separator: str = ","
    dropout_rate: float = 0.0

    def draw(self, caption: str, role: Role, *key: int) -> str:
        """The caption in this place of this step."""
        if role != "instance":
            return caption
        if self.dropout_rate and float(uniform(self.seed, "caption-dropout", *key, shape=(1,))) < self.dropout_rate:
            return ""
        if not self.shuffled:
            return caption
        parts = [part.strip() for part in caption.split(self.separator)]
        first, rest = parts[: self.kept], parts[self.kept :]
        order = permutation(self.seed, "caption-order", *key, n=len(rest))
        return f"{self.separator} ".join([*first, *(rest[place] for place in order)])

    def all_of(self, captions: Iterable[str]) -> list[str] | None:
        """Everything that may ever be said, in a fixed order; None when that is too much to list."""
        if self.shuffled:
            return None
        return sorted({*captions, *([""] if self.dropout_rate else [])})


class EmbeddingCache:
    """Embeddings of captions by frozen text encoders, each made once: 0.3 MB per caption in 16 bits.

    Captions are encoded one at a time, so that the bits of an embedding do not depend on its neighbours.
    """

    def __init__(
        self,
        *,
        tokenizers: Sequence[Any],
        text_encoders: Sequence[Any],
        encoder_key: str,
        family: Family = SDXL,
    ) -> None:
        self._tokenizers, self._text_encoders, self._encoder_key = tokenizers, text_encoders, encoder_key
        self._family = family
        self._entries: dict[tuple[str, str], Embedding] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @torch.no_grad()
    def fill(self, captions: Iterable[str], tick: Callable[[], None] = lambda: None) -> None:
        """Encode what is missing. `tick` is called after each; it may raise to stop."""
        for caption in captions:
            key = self._key(caption)
            if key not in self._entries:
                self._entries[key] = encode(self._tokenizers, self._text_encoders, [caption], family=self._family)
                tick()

    def put(self, caption: str, embedding: Embedding) -> None:
        """Take over what was encoded before: an embedding of one caption, on any device."""
        device, pooled_BP = self._text_encoders[0].device, embedding.pooled_BP
        self._entries[self._key(caption)] = Embedding(
            prompt_BLD=embedding.prompt_BLD.to(device), pooled_BP=None if pooled_BP is None else pooled_BP.to(device)
        )

    def __contains__(self, caption: str) -> bool:
        return self._key(caption) in self._entries

    def batch(self, captions: Sequence[str]) -> Embedding:
        """Embeddings of captions that were filled in, stacked."""
        entries = [self._entries[self._key(caption)] for caption in captions]
        pooled = [entry.pooled_BP for entry in entries if entry.pooled_BP is not None]
        return Embedding(
            prompt_BLD=torch.cat([entry.prompt_BLD for entry in entries]),
            pooled_BP=torch.cat(pooled) if pooled else None,
        )

    def _key(self, caption: str) -> tuple[str, str]:
        return hashlib.sha256(caption.encode("utf-8")).hexdigest(), self._encoder_key
