"""Rows through an encoder: cut pictures to posteriors, captions to embeddings; and the actors of Ray that do it.

Trainers encode what comes without (mode colocated, rows for validation) by the same functions.

Shapes: B pictures of one size, H, W in pixels, C = 3.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from giornata.diffusion.draws.buckets import Size
from giornata.pretrain.data import columns
from giornata.pretrain.encoding.encoder import Encoder, device_of_an_encoder, open_encoder
from giornata.protocol.pretraining import Mode, PretrainConfig

BATCHES_AT_ONCE = 4
"""Several batches are taken together, so that pictures of the sizes of aspect buckets fill theirs."""
NOT_FINITE = "the encoder made numbers of it that are not finite"
Item = TypeVar("Item")


def encode_cut(encoder: Encoder, cut: pa.Table, *, at_once: int, text: bool = True) -> pa.Table:
    """The FED rows of CUT rows, in the same order. Without `text` PROMPT and POOLED are empty.

    At most `at_once` pictures of one size go through the encoder together.
    """
    rows = cut.drop_columns([columns.PIXELS]).to_pylist()
    _add_posteriors(encoder, rows, cut.column(columns.PIXELS), at_once)
    if text:
        _add_text(encoder, rows, at_once)
    return _fed(rows)


def encode_captions(encoder: Encoder, latents: pa.Table, *, at_once: int) -> pa.Table:
    """The FED rows of rows with latents, with their captions' embeddings."""
    rows = latents.to_pylist()
    _add_text(encoder, rows, at_once)
    return _fed(rows)


def encoded_here(config: PretrainConfig, tables: Iterable[pa.Table], encoder: Encoder | None) -> Iterator[pa.Table]:
    """The FED rows of tables as the configuration's mode reads them, encoded in this process.

    A few batches of the encoder are taken at a time. Every mode but offline needs `encoder`.
    """
    mode, at_once = config.encode.mode, config.encode.encode_batch_size
    for table in tables:
        if mode is Mode.OFFLINE:
            yield table
            continue
        if encoder is None:
            raise RuntimeError(f"in mode {mode} these rows are encoded here, and no encoder was given")
        for first in range(0, len(table), BATCHES_AT_ONCE * at_once):
            few = table.slice(first, BATCHES_AT_ONCE * at_once)
            if mode is Mode.HYBRID:
                yield encode_captions(encoder, few, at_once=at_once)
            else:
                yield encode_cut(encoder, few.select(columns.CUT.names), at_once=at_once)


def encode_text(encoder: Encoder, rows: pa.Table, *, at_once: int) -> pa.Table:
    captions = rows.column(columns.CAPTION).to_pylist()
    embedded = list(_embedded(encoder, captions, at_once))
    prompts, pooled = [prompt for prompt, _ in embedded], [each for _, each in embedded if each is not None]
    for name, arrays in ((columns.PROMPT, prompts), (columns.POOLED, pooled)):
        shape = ",".join(map(str, arrays[0].shape)) if arrays else "0"
        content = [each.tobytes() for each in arrays] or [b""] * len(captions)
        rows = rows.append_column(columns.array_field(name, shape), pa.array(content, pa.binary()))
    return rows


def _add_posteriors(encoder: Encoder, rows: list[dict[str, Any]], pixels: pa.ChunkedArray, at_once: int) -> None:
    sizes: dict[Size, list[int]] = {}
    for place, row in enumerate(rows):
        if not row[columns.REASON]:
            sizes.setdefault((row[columns.TARGET_HEIGHT], row[columns.TARGET_WIDTH]), []).append(place)
    for size, places in sizes.items():
        for few in _few(places, at_once):
            pixels_BHWC = [np.frombuffer(pixels[place].as_buffer(), np.uint8).reshape(*size, 3) for place in few]
            posterior = encoder.encode_images(np.stack(pixels_BHWC))
            for place, mean_Chw, logvar_Chw in zip(few, posterior.mean_BChw, posterior.logvar_BChw, strict=True):
                if np.isfinite(mean_Chw).all() and np.isfinite(logvar_Chw).all():
                    rows[place] |= {columns.MEAN: mean_Chw.tobytes(), columns.LOGVAR: logvar_Chw.tobytes()}
                else:
                    rows[place][columns.REASON] = NOT_FINITE


def _add_text(encoder: Encoder, rows: list[dict[str, Any]], at_once: int) -> None:
    readable = [row for row in rows if not row[columns.REASON]]
    embedded = _embedded(encoder, [row[columns.CAPTION] for row in readable], at_once)
    for row, (prompt_LD, pooled_P) in zip(readable, embedded, strict=True):
        row |= {columns.PROMPT: prompt_LD.tobytes(), columns.POOLED: b"" if pooled_P is None else pooled_P.tobytes()}


def _embedded(
    encoder: Encoder, captions: Sequence[str], at_once: int
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    for few in _few(captions, at_once):
        text = encoder.encode_text(few)
        yield from zip(text.prompt_NLD, [None] * len(few) if text.pooled_NP is None else text.pooled_NP, strict=True)


def _few(values: Sequence[Item], at_once: int) -> Iterator[Sequence[Item]]:
    for first in range(0, len(values), at_once):
        yield values[first : first + at_once]


def _fed(rows: list[dict[str, Any]]) -> pa.Table:
    empty = dict.fromkeys((columns.MEAN, columns.LOGVAR, columns.PROMPT, columns.POOLED), b"")
    return pa.Table.from_pylist([{**empty, **row} for row in rows], schema=columns.FED)


class EncodePictures:
    """An actor: cut pictures to posteriors, captions to embeddings. It loads its model once."""

    def __init__(self, config: PretrainConfig, *, images: bool = True) -> None:
        device = device_of_an_encoder(config)
        self._encoder = open_encoder(config.model, seed=config.seed, device=device, images=images)
        self._at_once = config.encode.encode_batch_size

    def __call__(self, cut: pa.Table) -> pa.Table:
        """Return the rows with their encodings, in the schema `columns.FED`."""
        return encode_cut(self._encoder, cut.select(columns.CUT.names), at_once=self._at_once)


class EncodeCaptions(EncodePictures):
    """An actor: captions to embeddings."""

    def __init__(self, config: PretrainConfig) -> None:
        super().__init__(config, images=False)

    def __call__(self, latents: pa.Table) -> pa.Table:
        """Return the rows with their encodings, in the schema `columns.FED`."""
        return encode_captions(self._encoder, latents, at_once=self._at_once)
