"""Encodes captions into the embeddings that the UNet attends to.

Shapes: B captions; N chunks of a caption; L = 75 N + 2 tokens; D the UNet's cross-attention width (2048 for SDXL:
768 + 1280 side by side; 768 for Stable Diffusion 1.5); P the width of the pooled embedding (1280), where there is
one.

Captions are used to the letter: quotes, spaces and any script. Only what asks for it is cut: otherwise a caption that
has too many tokens is refused, by name and number of tokens.

CLIP's text encoders read 75 tokens between their marks. A caption of up to 150 or 225 is read in chunks, as kohya's
sd-scripts do it (`library/strategy_base.py` and `library/strategy_sdxl.py`): each chunk of 75 tokens is read as a
caption of its own, with marks and padding. Their hidden states stand side by side between the first chunk's start and
the last chunk's end. The pooled output is that of the first chunk.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.draws.randomness import permutation, uniform
from giornata.diffusion.draws.sample_order import Role
from giornata.diffusion.encode.scratch_file import ScratchFile, ScratchRow
from giornata.diffusion.families import SDXL, Family
from giornata.domain.errors import Fault
from giornata.domain.files import caption_length
from giornata.domain.files.caption_length import CHUNK

EMBEDDING_MEMORY_BYTES = 2**28
"""Some 800 captions of SDXL in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The text embeddings that condition the UNet on a batch of captions. `pooled_BP` is None where the family has
    none."""

    prompt_BLD: torch.Tensor
    pooled_BP: torch.Tensor | None

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Embedding":
        """Return the embedding with both tensors changed."""
        pooled_BP = None if self.pooled_BP is None else change(self.pooled_BP)
        return Embedding(prompt_BLD=change(self.prompt_BLD), pooled_BP=pooled_BP)


def token_count(caption: str, tokenizers: Sequence[Any]) -> int:
    """Count the tokens between the marks of start and end, by the tokenizer that makes the most of them."""
    return max(len(_tokens(tokenizer, caption)) for tokenizer in tokenizers)


def too_long(
    captions: Iterable[tuple[str, str]], tokenizers: Sequence[Any], *, max_token_length: int = CHUNK
) -> list[Fault]:
    """Return faults for every (where, caption) that has more tokens than fit; see `caption_length.too_long`."""
    limit = max_token_length // CHUNK * (min(tokenizer.model_max_length for tokenizer in tokenizers) - 2)
    return caption_length.too_long(captions, count=lambda text: token_count(text, tokenizers), limit=limit)


def encode(
    tokenizers: Sequence[Any],
    text_encoders: Sequence[Any],
    captions: Sequence[str],
    *,
    family: Family = SDXL,
    max_token_length: int = CHUNK,
    truncation: bool = False,
) -> Embedding:
    """Encode captions as `encode_prompt` of the family's pipeline does: the hidden layers that it uses of all
    encoders side by side, and the pooled, projected output of the last, if it uses that. Gradients flow if the caller
    lets them.

    With `truncation` captions that do not fit are cut, as pre-training does it with texts that were not written for a
    text encoder; adapters' captions are only where the job asks for it.
    """
    hidden, pooled_BP = [], None
    chunks = max_token_length // CHUNK
    for tokenizer, encoder in zip(tokenizers, text_encoders, strict=True):
        if chunks == 1:
            tokens_BL = tokenizer(
                list(captions),
                padding="max_length",
                max_length=tokenizer.model_max_length,
                truncation=truncation,
                return_tensors="pt",
            ).input_ids
        else:
            tokens_BL = _in_chunks(tokenizer, captions, chunks, truncation=truncation)
        output = encoder(moved(tokens_BL, encoder.device), output_hidden_states=True)
        layer = family.hidden_layer
        states_BLD = output.last_hidden_state if layer is None else output.hidden_states[layer]
        hidden.append(joined_chunks(states_BLD, chunks))
        pooled_BP = output[0][::chunks] if family.pooled else None
    if family.pooled and (pooled_BP is None or pooled_BP.ndim != 2):
        raise TypeError(f"the last text encoder gives no pooled output; {family.title} needs one with a projection")
    return Embedding(prompt_BLD=torch.cat(hidden, dim=-1), pooled_BP=pooled_BP)


def _tokens(tokenizer: Any, caption: str) -> list[int]:
    return list(tokenizer(caption, add_special_tokens=False, verbose=False).input_ids)


def _in_chunks(tokenizer: Any, captions: Sequence[str], chunks: int, *, truncation: bool) -> torch.Tensor:
    """Return tokens of (B N) x 77: the chunks of the first caption, then those of the next. Each has the marks of
    start and end; an empty one is as an empty caption. Raises ValueError when a caption does not fit and is not to be
    cut."""
    length = tokenizer.model_max_length
    room, rows = length - 2, []
    for caption in captions:
        tokens = _tokens(tokenizer, caption)
        if len(tokens) > chunks * room and not truncation:
            raise ValueError(f"a caption has {len(tokens)} tokens, and {chunks * room} fit")
        for first in range(0, chunks * room, room):
            row = [tokenizer.bos_token_id, *tokens[first : first + room], tokenizer.eos_token_id]
            rows.append(row + [tokenizer.pad_token_id] * (length - len(row)))
    return torch.tensor(rows, dtype=torch.long)


def joined_chunks(states_BLD: torch.Tensor, chunks: int) -> torch.Tensor:
    """Join hidden states of the chunks, (B N) x 77 x D, into one row for each caption: B x (75 N + 2) x D."""
    if chunks == 1:
        return states_BLD
    states_BNLD = states_BLD.unflatten(0, (-1, chunks))
    inner_BLD = states_BNLD[:, :, 1:-1].flatten(1, 2)
    return torch.cat([states_BNLD[:, 0, :1], inner_BLD, states_BNLD[:, -1, -1:]], dim=1)


def moved(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move the numbers to the device. A copy to a GPU waits for nothing that is under way there."""
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionAugmentation:
    """The augmentation of a subject's captions: functions of (seed, step, micro-batch, place). Class pictures'
    captions stay as they are, for they say what is to be kept.

    `separator` stands between the parts; the first `kept` ones stay where they are when `shuffled`, or those that
    `keep_separator` tells apart.
    """

    seed: int = 0
    shuffled: bool = False
    kept: int = 0
    separator: str = ","
    keep_separator: str | None = None
    dropout_rate: float = 0.0

    def draw(self, caption: str, role: Role, *key: int) -> str:
        """Draw the caption for this place of this step."""
        if role != "instance":
            return caption
        if self.dropout_rate and float(uniform(self.seed, "caption-dropout", *key, shape=(1,))) < self.dropout_rate:
            return ""
        if not self.shuffled:
            return caption
        first, rest, last = caption_length.parts_of(
            caption, separator=self.separator, kept=self.kept, keep_separator=self.keep_separator
        )
        order = permutation(self.seed, "caption-order", *key, n=len(rest))
        return caption_length.joined([*first, *(rest[place] for place in order), *last], self.separator)

    def all_of(self, captions: Iterable[str]) -> list[str] | None:
        """Return every caption that a draw may ever give, in a fixed order; None when there are too many to list."""
        if self.shuffled:
            return None
        return sorted({*captions, *([""] if self.dropout_rate else [])})


class EmbeddingCache:
    """Embeddings of captions by frozen text encoders, each made once: 0.3 MB per caption in 16 bits.

    Captions are encoded one at a time, so that the bits of an embedding do not depend on its neighbors. Embeddings up
    to `memory_bytes` stay on the device. Further ones lie in a file of `directory` (None: the system's folder for
    temporary files).
    """

    def __init__(
        self,
        *,
        tokenizers: Sequence[Any],
        text_encoders: Sequence[Any],
        encoder_key: str,
        family: Family = SDXL,
        max_token_length: int = CHUNK,
        truncation: bool = False,
        memory_bytes: int = EMBEDDING_MEMORY_BYTES,
        directory: Path | None = None,
    ) -> None:
        self._tokenizers, self._text_encoders, self._encoder_key = tokenizers, text_encoders, encoder_key
        self._family, self._max_token_length, self._truncation = family, max_token_length, truncation
        self._entries: dict[tuple[str, str], Embedding] = {}
        self._rows: dict[tuple[str, str], ScratchRow] = {}
        self._file = ScratchFile(Path(tempfile.gettempdir()) if directory is None else directory)
        self._bound_bytes, self.in_memory_bytes = memory_bytes, 0

    def __len__(self) -> int:
        return len(self._entries) + len(self._rows)

    @property
    def on_disk_bytes(self) -> int:
        """Return the bytes of the embeddings that lie in the file."""
        return self._file.size_bytes

    @torch.no_grad()
    def fill(self, captions: Iterable[str], tick: Callable[[], None] = lambda: None) -> None:
        """Encode what is missing. `tick` is called after each; it may raise to stop."""
        for caption in captions:
            if caption not in self:
                self._keep(caption, self._encoded(caption))
                tick()

    def _encoded(self, caption: str) -> Embedding:
        return encode(
            self._tokenizers,
            self._text_encoders,
            [caption],
            family=self._family,
            max_token_length=self._max_token_length,
            truncation=self._truncation,
        )

    def put(self, caption: str, embedding: Embedding) -> None:
        """Take over an embedding that was encoded before: of one caption, on any device."""
        if caption not in self:
            self._keep(caption, embedding)

    def close(self) -> None:
        """Give the memory and the disk back."""
        self._file.close()
        self._entries.clear()
        self._rows.clear()

    def __contains__(self, caption: str) -> bool:
        key = self._key(caption)
        return key in self._entries or key in self._rows

    def batch(self, captions: Sequence[str]) -> Embedding:
        """Return the embeddings of captions that were filled in, stacked."""
        entries = [self._found(self._key(caption)) for caption in captions]
        pooled = [entry.pooled_BP for entry in entries if entry.pooled_BP is not None]
        return Embedding(
            prompt_BLD=torch.cat([entry.prompt_BLD for entry in entries]),
            pooled_BP=torch.cat(pooled) if pooled else None,
        )

    def _keep(self, caption: str, embedding: Embedding) -> None:
        key, pooled_BP = self._key(caption), embedding.pooled_BP
        tensors = [embedding.prompt_BLD, *([] if pooled_BP is None else [pooled_BP])]
        size_bytes = sum(each.nbytes for each in tensors)
        if self.in_memory_bytes + size_bytes > self._bound_bytes:
            self._rows[key] = self._file.append(tensors)
            return
        self._entries[key] = _embedding([each.to(self._text_encoders[0].device) for each in tensors])
        self.in_memory_bytes += size_bytes

    def _found(self, key: tuple[str, str]) -> Embedding:
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        device = self._text_encoders[0].device
        return _embedding([moved(each, device) for each in self._file.read(self._rows[key])])

    def _key(self, caption: str) -> tuple[str, str]:
        return hashlib.sha256(caption.encode("utf-8")).hexdigest(), self._encoder_key


def _embedding(tensors: Sequence[torch.Tensor]) -> Embedding:
    """Make an embedding of its prompt and, where there is one, its pooled part."""
    return Embedding(prompt_BLD=tensors[0], pooled_BP=tensors[1] if len(tensors) > 1 else None)
