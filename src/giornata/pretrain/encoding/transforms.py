"""Turn a source row into an encoder's input: a rectangle of pixels as uint8, and one of the row's captions.

Shapes: H, W in pixels, C = 3. Sizes and offsets are (y, x). The crop and the mirroring are functions of (seed, key,
epoch), or of (seed, key) where the latents are stored for every epoch. The caption is a function of the seed and the
use: (phase, epoch, key), or (key) where the text is stored. Trainers draw caption dropout and noise.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np
import pyarrow as pa
from PIL.Image import Image

from giornata.diffusion.draws import randomness
from giornata.diffusion.encode import pixels
from giornata.diffusion.encode.decoding import Undecodable, decode
from giornata.domain.files.buckets import Size, bucket_sizes, nearest
from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Manifest
from giornata.protocol.pretraining import Data


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """The way to cut pictures in one phase. Without `buckets` each becomes a square."""

    seed: int
    resolution: int
    center_crop: bool
    random_flip: bool
    buckets: tuple[Size, ...] = ()

    @classmethod
    def of(cls, data: Data, *, seed: int, resolution: int) -> Self:
        """The configuration's way to cut. Sides of buckets are from half the resolution to twice the resolution."""
        buckets: tuple[Size, ...] = ()
        if data.enable_bucket:
            steps = data.bucket_reso_steps
            least = max(steps, resolution // 2 // steps * steps)
            buckets = bucket_sizes(resolution=resolution, steps=steps, least=least, most=2 * resolution)
        return cls(
            seed=seed,
            resolution=resolution,
            center_crop=data.center_crop,
            random_flip=data.random_flip,
            buckets=buckets,
        )

    def target(self, original: Size) -> Size:
        return nearest(original, self.buckets) if self.buckets else (self.resolution, self.resolution)

    def cut(self, image: Image, key: str, epoch: int | None) -> dict[str, Any]:
        """The columns of a cut picture: its size, the cut's, PIXELS. `epoch` is None where latents are stored."""
        original, counter = (image.height, image.width), () if epoch is None else (epoch,)
        resized = pixels.resize(image, self.target(original))
        placement = pixels.place(
            original=original,
            resized=(resized.height, resized.width),
            target_size=self.target(original),
            at=self._place(key, *counter),
            flip=self._flip(key, *counter),
        )
        values = (*placement.target_size, *placement.crop_top_left)
        return {
            columns.HEIGHT: image.height,
            columns.WIDTH: image.width,
            columns.REASON: "",
            columns.PIXELS: pixels.cut(resized, placement).tobytes(),
            **dict(zip(columns.GEOMETRY, values, strict=True)),
        }

    def _place(self, key: str, *counter: int) -> tuple[float, float] | None:
        if self.center_crop:
            return None
        y, x = randomness.uniform(self.seed, "pretrain/crop", key, *counter, shape=(2,)).tolist()
        return y, x

    def _flip(self, key: str, *counter: int) -> bool:
        return self.random_flip and bool(randomness.integer(self.seed, "pretrain/flip", key, *counter, low=0, high=2))


def cut_rows(cutting: Cutting, rows: Sequence[Mapping[str, Any]], *, epoch_in_draws: bool) -> pa.Table:
    """Source rows with the columns of their use, cut to columns.CUT. An unreadable row has a reason and no pixels."""
    return cut_for_each((cutting,), rows, epoch_in_draws=epoch_in_draws)[0]


def cut_for_each(
    cuttings: Sequence[Cutting], rows: Sequence[Mapping[str, Any]], *, epoch_in_draws: bool
) -> list[pa.Table]:
    """A table of columns.CUT for each cutting. A picture is decoded once for all of them."""
    cut: list[list[dict[str, Any]]] = [[] for _ in cuttings]
    for row in rows:
        epoch = row[columns.EPOCH] if epoch_in_draws else None
        use = {name: row[name] for name in columns.CUT.names if name in row}
        try:
            image = decode(row[columns.IMAGE])
            found = [each.cut(image, row[columns.KEY], epoch) for each in cuttings]
        except Undecodable as error:
            unreadable = {columns.REASON: str(error), columns.PIXELS: b"", **dict.fromkeys(columns.GEOMETRY, 0)}
            found = [unreadable] * len(cuttings)
        for made, values in zip(cut, found, strict=True):
            made.append({**use, **values})
    return [pa.Table.from_pylist(made, schema=columns.CUT) for made in cut]


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The VAE's posterior of cut pictures before any scaling: float16 arrays, B4hw each."""

    mean_BChw: np.ndarray
    logvar_BChw: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionChoice:
    """The choice among a picture's captions. `weights` are the configuration's data.caption_weights."""

    seed: int
    weights: tuple[float, ...] | None = None

    def of(self, captions: Sequence[str], place: Sequence[int | str]) -> str:
        """Choose one of the captions. `place` names the use."""
        *ends, whole = accumulate(self.weights[: len(captions)] if self.weights else [1] * len(captions))
        if not ends:
            return captions[0]
        drawn = float(randomness.uniform(self.seed, "pretrain/caption", *place, shape=(1,)))
        return captions[bisect_right(ends, drawn * whole)]

    def taken(self, rows: pa.Table, places: Sequence[Sequence[int | str]]) -> pa.Table:
        """The rows without CAPTIONS, each with its chosen CAPTION."""
        if columns.CAPTIONS not in rows.column_names:
            return rows
        several = rows.column(columns.CAPTIONS).to_pylist()
        taken = [self.of(captions, place) for captions, place in zip(several, places, strict=True)]
        column = pa.array(taken, pa.string())
        number = rows.column_names.index(columns.CAPTION)
        return rows.set_column(number, columns.CAPTION, column).drop_columns([columns.CAPTIONS])


def several_captions(source: Manifest) -> bool:
    """Return True when rows of this data set may have several captions."""
    return bool(source.about.get("ingest", {}).get("max_captions", 1) > 1)
