"""From a source row to the rectangle of pixels that an encoder sees, as uint8: a quarter of the bytes of floats.

Shapes: H, W in pixels, C = 3. Sizes and offsets are (y, x). What is drawn here is where a picture is cut and whether
it is mirrored, as functions of (seed, key, epoch), or of (seed, key) where the latents are stored and met again in
every epoch. Caption dropout and noise are drawn by whoever trains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from PIL.Image import Image

from giornata.diffusion import pixels, randomness
from giornata.diffusion.buckets import Size, bucket_sizes, nearest
from giornata.diffusion.decoding import Undecodable, decode
from giornata.pretrain.data import columns
from giornata.protocol.pretraining import Data

GEOMETRY = (
    columns.TARGET_HEIGHT,
    columns.TARGET_WIDTH,
    columns.CROP_TOP,
    columns.CROP_LEFT,
)
CUT = pa.schema(
    [
        *[columns.FED.field(name) for name in (columns.PORTION, columns.EPOCH, columns.SHARD, columns.ROW)],
        *[columns.LATENTS.field(name) for name in (columns.KEY, columns.CAPTION, columns.HEIGHT, columns.WIDTH)],
        *[columns.LATENTS.field(name) for name in (*GEOMETRY, columns.REASON)],
        pa.field(columns.PIXELS, pa.binary()),
    ]
)
"""One use of a picture that was cut. A row that cannot be read keeps its place, with its reason and no pixels."""
NO_GEOMETRY = dict.fromkeys(GEOMETRY, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How pictures become rectangles in one phase. Without `buckets` each becomes a square."""

    seed: int
    resolution: int
    center_crop: bool
    random_flip: bool
    buckets: tuple[Size, ...] = ()

    @classmethod
    def of(cls, data: Data, *, seed: int, resolution: int) -> Self:
        """As the configuration has it. Sides of buckets are from half of the resolution to twice it."""
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

    @property
    def draws(self) -> bool:
        """Whether anything is left to chance."""
        return self.random_flip or not self.center_crop

    def target(self, original: Size) -> Size:
        """The size that a picture of this size is cut to."""
        return nearest(original, self.buckets) if self.buckets else (self.resolution, self.resolution)

    def cut(self, content: bytes, key: str, epoch: int | None) -> dict[str, Any]:
        """Columns of a picture: its size, the cut's, PIXELS. `epoch` is None where latents are stored.

        What cannot be decoded gives its REASON and no pixels; nothing is raised for it.
        """
        try:
            return self.cut_image(decode(content), key, epoch)
        except Undecodable as error:
            return _unreadable(error)

    def cut_image(self, image: Image, key: str, epoch: int | None) -> dict[str, Any]:
        """As `cut`, of a picture that was decoded already."""
        original = (image.height, image.width)
        resized = pixels.resize(image, self.target(original))
        placement = pixels.place(
            original=original,
            resized=(resized.height, resized.width),
            target_size=self.target(original),
            at=self._place(key, epoch),
            flip=self._flip(key, epoch),
        )
        values = (*placement.target_size, *placement.crop_top_left)
        return {
            columns.HEIGHT: image.height,
            columns.WIDTH: image.width,
            columns.REASON: "",
            columns.PIXELS: pixels.cut(resized, placement).tobytes(),
            **dict(zip(GEOMETRY, values, strict=True)),
        }

    def _place(self, key: str, epoch: int | None) -> tuple[float, float] | None:
        if self.center_crop:
            return None
        y, x = randomness.uniform(self.seed, "pretrain/crop", key, *_counter(epoch), shape=(2,)).tolist()
        return y, x

    def _flip(self, key: str, epoch: int | None) -> bool:
        drawn = self.random_flip and randomness.integer(
            self.seed, "pretrain/flip", key, *_counter(epoch), low=0, high=2
        )
        return bool(drawn)


def _counter(epoch: int | None) -> tuple[int, ...]:
    return () if epoch is None else (epoch,)


def _unreadable(error: Undecodable) -> dict[str, Any]:
    return {columns.REASON: str(error), columns.PIXELS: b"", **NO_GEOMETRY}


def cut_rows(cutting: Cutting, rows: Sequence[Mapping[str, Any]], *, epoch_in_draws: bool) -> pa.Table:
    """CUT of source rows that carry the columns of their use (PORTION, EPOCH, SHARD, ROW)."""
    return cut_for_each((cutting,), rows, epoch_in_draws=epoch_in_draws)[0]


def cut_for_each(
    cuttings: Sequence[Cutting], rows: Sequence[Mapping[str, Any]], *, epoch_in_draws: bool
) -> list[pa.Table]:
    """As `cut_rows`, a table for each cutting. A picture is decoded once for all of them."""
    cut: list[list[dict[str, Any]]] = [[] for _ in cuttings]
    for row in rows:
        epoch, use = row[columns.EPOCH] if epoch_in_draws else None, {n: row[n] for n in CUT.names if n in row}
        try:
            image = decode(row[columns.IMAGE])
            found = [each.cut_image(image, row[columns.KEY], epoch) for each in cuttings]
        except Undecodable as error:
            found = [_unreadable(error)] * len(cuttings)
        for made, values in zip(cut, found, strict=True):
            made.append({**use, **values})
    return [pa.Table.from_pylist(made, schema=CUT) for made in cut]
