"""The VAE's view of every picture, encoded once.

Shapes: C = 4 latent channels; H, W = pixels / 8.

What is kept is the mean and the standard deviation of the posterior, not a sample of it, so that every draw still
takes a sample of its own: latents = (mean + std · noise) · scaling_factor, as if the picture had been encoded anew
at every step, without the 5 TFLOP that this costs at 1024 x 1024.

Random crops: each picture has CROP_VARIANTS crops that the seed chose, with and without mirroring, and every draw
picks one of them. Endlessly many crops would mean encoding at every draw; the posterior's noise varies the latents
at every draw anyway. Only what the remaining steps will really draw is encoded, so a short job on many pictures
encodes no more than it would on demand. The bits of a latent do not depend on its neighbors, nor on where an attempt
began; giornata.diffusion.encode.latent_batches says how many pictures are encoded together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from PIL import Image

from giornata.diffusion.draws import randomness
from giornata.diffusion.encode import pixels
from giornata.diffusion.encode.latent_batches import LatentBatches, RowsOf, one_row
from giornata.diffusion.encode.latent_store import LatentEntry, LatentStore
from giornata.diffusion.encode.pixels import CropPlacement
from giornata.domain.files.buckets import Size, bucket_sizes, target_size
from giornata.protocol.specs import TrainSpec

__all__ = [
    "CROP_VARIANTS",
    "CropPolicy",
    "CropView",
    "CroppedPixels",
    "LatentCache",
    "LatentEntry",
    "LatentKey",
    "sample",
]

CROP_VARIANTS = 4

Tick = Callable[[], None]
"""Called after each view that is encoded; may raise to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CropView:
    """The view of a picture in one draw: which of its crops, whether mirrored, and at which resolution in pixels
    (None: the job's)."""

    picture_sha256: str
    crop: int
    flip: bool
    resolution: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentKey:
    """The key of an encoding: everything that the encoding depends on. Equal keys share one entry."""

    picture_sha256: str
    crop_top_left: tuple[int, int]
    flip: bool
    target_size: tuple[int, int]
    masked: bool
    vae_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CroppedPixels:
    """A view cut out of its picture, ready for the VAE. Views with equal keys share their pixels."""

    view: CropView
    key: LatentKey
    placement: CropPlacement
    pixels_HWC: np.ndarray
    mask_HW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CropPolicy:
    """The rule by which the job crops its pictures. All crops are functions of (seed, picture, crop number).

    Without `buckets` every picture becomes a square. With `no_upscale_steps` no picture is enlarged: its bucket is
    made of its own size (see `buckets.shrunk`). Sizes are (height, width). `sides` are the step, the least and the
    greatest side of buckets; pictures with a resolution of their own have buckets made from it likewise.
    """

    seed: int
    resolution: int
    center_crop: bool
    random_flip: bool
    buckets: tuple[Size, ...] = ()
    masked: bool = False
    no_upscale_steps: int | None = None
    sides: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, spec: TrainSpec, *, seed: int) -> Self:
        """Return the crop policy that the spec wants."""
        buckets = bucket_sizes(
            resolution=spec.resolution,
            steps=spec.bucket_reso_steps,
            least=spec.min_bucket_reso,
            most=spec.max_bucket_reso,
        )
        return cls(
            seed=seed,
            resolution=spec.resolution,
            center_crop=spec.center_crop,
            random_flip=spec.random_flip,
            buckets=buckets if spec.enable_bucket else (),
            masked=spec.masked_loss,
            no_upscale_steps=spec.bucket_reso_steps if spec.bucket_no_upscale else None,
            sides=(spec.bucket_reso_steps, spec.min_bucket_reso, spec.max_bucket_reso)
            if spec.enable_bucket
            else None,
        )

    def lesser(self, resolution: int | None) -> int | None:
        """Return a picture's own resolution where it counts: with buckets, and below the job's."""
        return resolution if self.sides is not None and (resolution or self.resolution) < self.resolution else None

    def buckets_at(self, resolution: int | None) -> tuple[Size, ...]:
        """Return the buckets of pictures with this resolution of their own."""
        resolution = self.lesser(resolution)
        if self.sides is None or resolution is None:
            return self.buckets
        steps, least, most = self.sides
        return bucket_sizes(resolution=resolution, steps=steps, least=least, most=most)

    def target(self, original: Size, resolution: int | None = None) -> Size:
        """Return the size that a picture of this size is trained at. `resolution` is its own."""
        return target_size(
            original,
            resolution=self.lesser(resolution) or self.resolution,
            buckets=self.buckets_at(resolution),
            no_upscale_steps=self.no_upscale_steps,
        )

    def draw(self, picture_sha256: str, purpose: str, *counters: int, resolution: int | None = None) -> CropView:
        """Draw the view of one draw, named by `purpose` and `counters`, of a picture with this resolution of
        its own."""
        crop = flip = 0
        if not self.center_crop:
            crop = randomness.integer(self.seed, f"crop/{purpose}", *counters, low=0, high=CROP_VARIANTS)
        if self.random_flip:
            flip = randomness.integer(self.seed, f"flip/{purpose}", *counters, low=0, high=2)
        return CropView(picture_sha256=picture_sha256, crop=crop, flip=bool(flip), resolution=self.lesser(resolution))

    def views(self, picture_sha256: str, resolution: int | None = None) -> list[CropView]:
        """Return every view that `draw` can return for a picture."""
        crops = range(1 if self.center_crop else CROP_VARIANTS)
        flips = (False, True) if self.random_flip else (False,)
        lesser = self.lesser(resolution)
        return [
            CropView(picture_sha256=picture_sha256, crop=crop, flip=flip, resolution=lesser)
            for crop in crops
            for flip in flips
        ]

    def place(self, view: CropView, *, original: tuple[int, int], resized: tuple[int, int]) -> CropPlacement:
        """Place a view on a picture of these sizes (height, width)."""
        at = None
        if not self.center_crop:
            y, x = randomness.uniform(self.seed, "crop-at", view.picture_sha256, view.crop, shape=(2,)).tolist()
            at = (y, x)
        target = self.target(original, view.resolution)
        return pixels.place(original=original, resized=resized, target_size=target, at=at, flip=view.flip)


class LatentCache:
    """The encoded pictures of one job: 0.5 MB per entry at 1024 x 1024. `entries` decides where they are kept;
    `rows_of` how many crops of one size go through the VAE at a time."""

    def __init__(
        self,
        *,
        vae: Any,
        vae_key: str,
        crop_policy: CropPolicy,
        entries: LatentStore | None = None,
        rows_of: RowsOf = one_row,
    ) -> None:
        self._vae, self._vae_key, self._framing = vae, vae_key, crop_policy
        self._entries = LatentStore() if entries is None else entries
        self._batches = LatentBatches(vae, rows_of)
        self._views: dict[CropView, tuple[LatentKey, CropPlacement]] = {}
        self._waiting: dict[Size, dict[LatentKey, list[tuple[CroppedPixels, Tick]]]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """Return how many different crops wait until a batch of their size is full."""
        return sum(map(len, self._waiting.values()))

    def crops(self, image: Image.Image, views: Iterable[CropView]) -> list[CroppedPixels]:
        """Cut these views out of one decoded picture. Changes nothing: another thread may call it."""
        colors, alpha = pixels.split_alpha(image)
        original, views = (image.height, image.width), list(views)
        resized = {
            resolution: pixels.resize(colors, self._framing.target(original, resolution))
            for resolution in {view.resolution for view in views}
        }
        found: dict[LatentKey, CroppedPixels] = {}
        crops = []
        for view in views:
            placement = self._place(image, view)
            key = self._key(view, placement)
            if key not in found:
                mask_HW = None if alpha is None else self._mask(alpha, placement)
                pixels_HWC = pixels.cut(resized[view.resolution], placement)
                found[key] = CroppedPixels(
                    view=view, key=key, placement=placement, pixels_HWC=pixels_HWC, mask_HW=mask_HW
                )
            crops.append(replace(found[key], view=view))
        return crops

    def add(self, crops: Iterable[CroppedPixels], tick: Tick = lambda: None) -> None:
        """Encode these crops, as soon as there are enough of their size. `tick` is called for each once it is in."""
        for crop in crops:
            if crop.key in self._entries:
                self._views[crop.view] = crop.key, crop.placement
                tick()
                continue
            size = crop.placement.target_size
            waiting = self._waiting[size]
            waiting.setdefault(crop.key, []).append((crop, tick))
            if len(waiting) >= self._batches.rows(size):
                self._encode(size)

    def flush(self) -> None:
        """Encode the crops that still wait for a full batch."""
        for size in tuple(self._waiting):
            self._encode(size)

    def close(self) -> None:
        """Give back the memory and disk that the entries take."""
        self._entries.close()
        self._views.clear()
        self._waiting.clear()

    def _encode(self, size: Size) -> None:
        waiting = self._waiting.pop(size)
        entries = self._batches.encode([same[0][0].pixels_HWC for same in waiting.values()])
        for (key, same), entry in zip(waiting.items(), entries, strict=True):
            self._entries[key] = replace(entry, mask_HW=same[0][0].mask_HW)
            for crop, _ in same:
                self._views[crop.view] = key, crop.placement
        for same in waiting.values():
            for _, tick in same:
                tick()

    def shows_nothing(
        self, image: Image.Image, picture_sha256: str, resolutions: Iterable[int | None] = (None,)
    ) -> bool:
        """Return True when the picture has a mask that is empty in every view at one of these resolutions of
        its own."""
        _, alpha = pixels.split_alpha(image)
        if alpha is None:
            return False
        return any(
            not any(bool(self._mask(alpha, self._place(image, view)).any()) for view in views)
            for views in (self._framing.views(picture_sha256, each) for each in resolutions)
        )

    def put(self, view: CropView, placement: CropPlacement, entry: LatentEntry) -> None:
        """Take over an entry that was encoded before. Entries of equal views are shared."""
        key = self._key(view, placement)
        if key not in self._entries:
            self._entries[key] = entry
        self._views[view] = key, placement

    def __contains__(self, view: CropView) -> bool:
        return view in self._views

    def __getitem__(self, view: CropView) -> tuple[LatentEntry, CropPlacement]:
        key, placement = self._views[view]
        return self._entries[key], placement

    def _place(self, image: Image.Image, view: CropView) -> CropPlacement:
        original = (image.height, image.width)
        width, height = pixels.covering_size(image.size, self._framing.target(original, view.resolution))
        return self._framing.place(view, original=original, resized=(height, width))

    def _mask(self, alpha: Image.Image, placement: CropPlacement) -> torch.Tensor:
        scale = 2 ** (len(self._vae.config.block_out_channels) - 1)  # as diffusers' pipelines have it
        return pixels.latent_mask(alpha, placement, scale=scale)

    def _key(self, view: CropView, placement: CropPlacement) -> LatentKey:
        return LatentKey(
            picture_sha256=view.picture_sha256,
            crop_top_left=placement.crop_top_left,
            flip=view.flip,
            target_size=placement.target_size,
            masked=self._framing.masked,
            vae_key=self._vae_key,
        )


def sample(entry: LatentEntry, noise_CHW: torch.Tensor, vae_config: Any) -> torch.Tensor:
    """Draw a sample from the posterior as the UNet wants it: latents_CHW, float32.

    (mean + std · noise) · scaling_factor; VAEs that state the mean and deviation of their latents are normalized by
    them first, as in diffusers' training scripts.
    """
    latents_CHW = entry.mean_CHW + entry.std_CHW * noise_CHW
    mean, std = (getattr(vae_config, name, None) for name in ("latents_mean", "latents_std"))
    if mean is None or std is None:
        return latents_CHW * vae_config.scaling_factor
    mean_C11, std_C11 = (torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (mean, std))
    return (latents_CHW - mean_C11) * vae_config.scaling_factor / std_C11
