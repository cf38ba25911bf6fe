"""What a job encodes, in portions: each is kept as soon as it is encoded, so that an attempt that is killed before
its first step leaves what it had.

Portions are a function of the job alone, whatever an attempt still needs of it, and so are the keys of their packs. A
small job is one portion.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from giornata.diffusion.latents import View
from giornata.diffusion.order import Sample
from giornata.workloads.train.material import Material

PORTION_PIXELS = 32 * 2**20
"""As many as 32 pictures of 1024 x 1024 have: seconds of a fast GPU, a minute of a slow one; 16 MiB to upload."""
PORTION_CAPTIONS = 64
"""Of SDXL 40 MiB."""

Picture = tuple[Material, tuple[Sample, ...]]
"""A distinct picture: where it is had from, and the samples that show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Pictures, every view of them that the job will ever look at (some have none), and captions."""

    pictures: tuple[Picture, ...] = ()
    views: tuple[View, ...] = ()
    captions: tuple[str, ...] = ()


def portions_of(
    materials: Iterable[Material], views: Iterable[View], captions: Sequence[str], *, view_pixels: int, pixels: int
) -> tuple[Portion, ...]:
    """All of it, the pictures in the order of their materials. `views` are those of the whole job, of about
    `view_pixels` each; `pixels` is how many make a portion full."""
    of_picture: dict[str, list[View]] = defaultdict(list)
    for view in views:
        of_picture[view.picture_sha256].append(view)
    groups: list[list[Picture]] = [[]]
    filled = 0
    for material, samples in _distinct(materials):
        if filled >= pixels:
            groups.append([])
            filled = 0
        groups[-1].append((material, samples))
        filled += len(of_picture[samples[0].sha256]) * view_pixels
    texts = [captions[at : at + PORTION_CAPTIONS] for at in range(0, len(captions), PORTION_CAPTIONS)]
    return tuple(
        Portion(
            pictures=tuple(pictures),
            views=tuple(view for _, samples in pictures for view in of_picture[samples[0].sha256]),
            captions=tuple(said),
        )
        for pictures, said in zip_longest(groups, texts, fillvalue=())
    )


def _distinct(materials: Iterable[Material]) -> list[Picture]:
    found: dict[str, tuple[Material, list[Sample]]] = {}
    for material in materials:
        for sample in material.samples:
            found.setdefault(sample.sha256, (material, []))[1].append(sample)
    return [(material, tuple(samples)) for material, samples in found.values()]
