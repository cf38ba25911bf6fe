"""Prompts as chunks of 75 tokens with weights, as CLIP's text encoders read them.

The grammar is that of `giornata.domain.generation.prompt_grammar`: pieces of text with weights, in sections that
BREAK divides. A section begins a chunk. Text that does not fit goes on in the next chunk, at any token. The vectors
of a textual inversion stand together in one chunk.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from giornata.domain.files.caption_length import CHUNK
from giornata.domain.generation.prompt_grammar import parse


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
