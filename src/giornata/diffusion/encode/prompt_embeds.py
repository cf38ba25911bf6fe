"""Prompts as the embeddings that condition a picture: weights, more than 75 tokens, new words, text encoders' LoRAs.

Shapes: N chunks; L = 75 N + 2 tokens, or 77 within a chunk; D the UNet's cross-attention width; P the width of the
pooled embedding; E the width of a text encoder.

The grammar is that of `giornata.domain.generation.prompt_grammar`: pieces of text with weights, in sections that
BREAK divides. A section begins a chunk. Text that does not fit goes on in the next chunk, at any token. The vectors
of a textual inversion stand together in one chunk.

A prompt of up to 75 tokens without weights gives the bytes of `encode_prompt` of diffusers' pipelines. Longer ones
are read in chunks and joined as captions are (`giornata.diffusion.encode.captions`), with BREAK as a place where a
chunk ends early.

A weight multiplies the hidden states of its tokens, in each text encoder apart. Then all hidden states of the chunk
are multiplied by one number that gives back their mean before. This is the convention of Stable Diffusion web UI
(A1111), described in its wiki under "Attention/emphasis". Where the mean is nearly zero it says nothing about size,
and is not given back. SDXL's pooled embedding is that of the first chunk, without weights.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.encode.captions import joined_chunks, moved
from giornata.diffusion.encode.extended_embedding import rows_beside
from giornata.diffusion.encode.text_loras import TextLora, text_loras_on
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.files.caption_length import CHUNK
from giornata.domain.generation.prompt_grammar import parse

PROMPT_MEMORY_BYTES = 2**28
"""Some 400 prompts of SDXL in 16 bits."""
LEAST_MEAN = 0.01
"""The mean, as a share of the root mean square, below which it is not given back: chance decides on the factor."""


@dataclass(slots=True)
class PromptChunk:
    """Up to 75 tokens and the weight of each. A negative token is a row beside the text encoder's embeddings."""

    tokens: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


def prompt_chunks(tokenizer: Any, prompt: str, vectors: Mapping[str, range]) -> list[PromptChunk]:
    """Return one chunk at least. `vectors` are the rows that stand for a word, such as range(0, 4). Words are found
    in any case, where no letter or digit is beside them.

    Raises InvalidInput for a prompt that breaks the grammar.
    """
    chunks: list[PromptChunk] = []
    for section in parse(prompt):
        chunks.append(PromptChunk())
        for segment in section:
            for tokens in _inseparable(tokenizer, segment.text, vectors):
                if len(chunks[-1].tokens) + len(tokens) > CHUNK:
                    chunks.append(PromptChunk())
                chunks[-1].tokens += tokens
                chunks[-1].weights += [segment.weight] * len(tokens)
    return chunks or [PromptChunk()]


def _inseparable(tokenizer: Any, text: str, vectors: Mapping[str, range]) -> Iterator[list[int]]:
    """Yield the tokens that have to stand together: each one of text by itself, all of a textual inversion."""
    rows = {word.lower(): numbers for word, numbers in vectors.items()}
    for part in re.split(_words(vectors), text, flags=re.IGNORECASE) if rows else (text,):
        if part.lower() in rows:
            yield [-1 - row for row in rows[part.lower()]]
        else:
            for token in tokenizer(part, add_special_tokens=False, verbose=False).input_ids:
                yield [token]


def _words(vectors: Mapping[str, range]) -> str:
    longest_first = sorted(vectors, key=len, reverse=True)
    return "(" + "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in longest_first) + ")"


def token_rows(
    tokenizer: Any, chunks: Sequence[PromptChunk], *, count: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return (tokens_NL, weights_NL) of `count` chunks with marks and padding. Further chunks are those of an empty
    prompt. The weights are None when all are 1."""
    length, every = tokenizer.model_max_length, [*chunks, *[PromptChunk()] * (count - len(chunks))]
    tokens, weights = [], []
    for chunk in every:
        padding = length - 2 - len(chunk.tokens)
        tokens.append([tokenizer.bos_token_id, *chunk.tokens, tokenizer.eos_token_id])
        tokens[-1] += [tokenizer.pad_token_id] * padding
        weights.append([1.0, *chunk.weights, *[1.0] * (padding + 1)])
    plain = all(weight == 1 for row in weights for weight in row)
    return torch.tensor(tokens, dtype=torch.long), None if plain else torch.tensor(weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextualInversion:
    """Vectors that stand for a word of a prompt: N × E for each text encoder. `sha256` tells the contents apart."""

    token: str
    sha256: str
    vectors_NE: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEmbeds:
    """The embeddings of one picture's prompts, both of one length. The pooled ones are None where the family has
    none."""

    prompt_LD: torch.Tensor
    pooled_P: torch.Tensor | None
    negative_LD: torch.Tensor
    negative_pooled_P: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conditions:
    """All that decides, beside the text, on what a prompt is encoded into."""

    clip_skip: int | None
    embeddings: tuple[TextualInversion, ...]
    loras: tuple[tuple[TextLora, float], ...]

    @property
    def key(self) -> tuple[object, ...]:
        words = tuple((each.token, each.sha256) for each in self.embeddings)
        return self.clip_skip, words, tuple((lora.key, weight) for lora, weight in self.loras)

    @property
    def rows(self) -> dict[str, range]:
        """Return the rows of each word beside the embeddings."""
        found, start = {}, 0
        for each in self.embeddings:
            end = start + len(each.vectors_NE[0])
            found[each.token], start = range(start, end), end
        return found


_Encoded = tuple[torch.Tensor, torch.Tensor | None]


class PromptEncoder:
    """The text encoders of `base` with what they encoded before, up to `memory_bytes`: prompts repeat, and negative
    prompts are mostly one.

    Each prompt is encoded by itself, so that its bits do not depend on other rows. The text encoders and the
    tokenizers are as they were after each call. `clear` when the weights of the base change.
    """

    def __init__(self, base: BaseModel, *, memory_bytes: int = PROMPT_MEMORY_BYTES) -> None:
        self._base, self._bound_bytes = base, memory_bytes
        self._cache: OrderedDict[tuple[object, ...], _Encoded] = OrderedDict()
        self.in_memory_bytes = 0

    def __len__(self) -> int:
        return len(self._cache)

    def clear(self) -> None:
        """Forget every prompt that was encoded."""
        self._cache.clear()
        self.in_memory_bytes = 0

    @torch.no_grad()
    def encode(
        self,
        prompt: str,
        negative_prompt: str | None = None,
        *,
        clip_skip: int | None = None,
        embeddings: Sequence[TextualInversion] = (),
        loras: Sequence[tuple[TextLora, float]] = (),
    ) -> PromptEmbeds:
        """Encode both prompts, padded to as many chunks as the longer one has.

        `clip_skip` counts as in diffusers, and as there is not for the negative prompt. Without a negative prompt
        the embeddings are what the family's pipeline has: zeros for SDXL, those of the empty text for SD 1.5.
        Raises InvalidInput for a prompt that breaks the grammar, and for more layers skipped than there are.
        """
        acting = tuple((lora, weight) for lora, weight in loras if weight != 0)
        plain = _Conditions(clip_skip=None, embeddings=tuple(embeddings), loras=acting)
        skipping = _Conditions(clip_skip=clip_skip, embeddings=plain.embeddings, loras=acting)
        chunks = self._chunks(prompt, skipping)
        zeros = not negative_prompt and self._base.family.force_zeros_for_empty_prompt
        negative_chunks = self._chunks("" if zeros else negative_prompt or "", plain)
        count = max(map(len, (*chunks, *negative_chunks)))
        prompt_LD, pooled_P = self._cached(prompt, chunks, count, skipping)
        if zeros:
            negative: _Encoded = torch.zeros_like(prompt_LD), None if pooled_P is None else torch.zeros_like(pooled_P)
        else:
            negative = self._cached(negative_prompt or "", negative_chunks, count, plain)
        return PromptEmbeds(
            prompt_LD=prompt_LD, pooled_P=pooled_P, negative_LD=negative[0], negative_pooled_P=negative[1]
        )

    def _chunks(self, prompt: str, conditions: _Conditions) -> list[list[PromptChunk]]:
        return [prompt_chunks(tokenizer, prompt, conditions.rows) for tokenizer in self._base.tokenizers]

    def _cached(
        self, prompt: str, chunks: Sequence[Sequence[PromptChunk]], count: int, conditions: _Conditions
    ) -> _Encoded:
        key = (prompt, count, *conditions.key)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        made = self._encoded(chunks, count, conditions)
        self._cache[key] = made
        self.in_memory_bytes += _size_bytes(made)
        while self.in_memory_bytes > self._bound_bytes and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self.in_memory_bytes -= _size_bytes(oldest)
        return made

    def _encoded(self, chunks: Sequence[Sequence[PromptChunk]], count: int, conditions: _Conditions) -> _Encoded:
        base, hidden, pooled_P = self._base, [], None
        words = [_joined_rows(conditions.embeddings, number) for number in range(len(base.text_encoders))]
        with rows_beside(base.text_encoders, words), text_loras_on(base.text_encoders, conditions.loras):
            for tokenizer, encoder, own in zip(base.tokenizers, base.text_encoders, chunks, strict=True):
                tokens_NL, weights_NL = token_rows(tokenizer, own, count=count)
                output = encoder(moved(tokens_NL, encoder.device), output_hidden_states=True)
                states_NLD = _hidden_states(base, encoder, output, conditions.clip_skip)
                if weights_NL is not None:
                    states_NLD = _weighted(states_NLD, moved(weights_NL, encoder.device))
                hidden.append(joined_chunks(states_NLD, count)[0])
                pooled_P = output[0][0] if base.family.pooled else None
        return torch.cat(hidden, dim=-1), pooled_P


def _size_bytes(encoded: _Encoded) -> int:
    return sum(tensor.nbytes for tensor in encoded if tensor is not None)


def _joined_rows(embeddings: Sequence[TextualInversion], encoder: int) -> torch.Tensor | None:
    rows = [each.vectors_NE[encoder].float() for each in embeddings]
    return torch.cat(rows) if rows else None


def _hidden_states(base: BaseModel, encoder: Any, output: Any, clip_skip: int | None) -> torch.Tensor:
    """Return the hidden states that the family uses, `clip_skip` layers earlier, as the family's pipeline does it."""
    layer = base.family.hidden_layer
    if clip_skip is None:
        return output.last_hidden_state if layer is None else output.hidden_states[layer]
    earlier = (-1 if layer is None else layer) - clip_skip
    if -earlier > len(output.hidden_states):
        message = f"skips {clip_skip} layers, and a text encoder has {len(output.hidden_states) - 1}"
        raise InvalidInput([Fault(where="clip_skip", message=message, hint="skip fewer layers")])
    states_NLD = output.hidden_states[earlier]
    if layer is not None:
        return states_NLD
    return getattr(encoder, "text_model", encoder).final_layer_norm(states_NLD)


def _weighted(states_NLD: torch.Tensor, weights_NL: torch.Tensor) -> torch.Tensor:
    """Multiply the states by the weights, and give each chunk its mean back."""
    states = states_NLD.float()
    changed = states * weights_NL.unsqueeze(-1)
    before_N11, after_N11 = states.mean((1, 2), keepdim=True), changed.mean((1, 2), keepdim=True)
    least_N11 = LEAST_MEAN * states.square().mean((1, 2), keepdim=True).sqrt()
    says = (before_N11.abs() >= least_N11) & (after_N11.abs() >= least_N11)
    factor_N11 = torch.where(says, before_N11 / after_N11, 1.0)
    return (changed * factor_N11).to(states_NLD.dtype)
