"""Encoding what a job's caches lack: captions, and views of pictures that threads decode meanwhile."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from giornata.diffusion import pixels
from giornata.diffusion.captions import EmbeddingCache
from giornata.diffusion.latents import Crop, LatentCache, View
from giornata.diffusion.order import Sample
from giornata.domain.errors import Fault
from giornata.workloads.train.decoding_ahead import ahead, threads_here
from giornata.workloads.train.material import Material, refuse_if
from giornata.workloads.train.packs import Offering
from giornata.workloads.train.portions import Portion

EMPTY_MASK = "its mask leaves nothing to learn: it is empty, or wherever the picture is cropped"
MEND_MASK = "mend the mask (its alpha channel), set enable_bucket, which crops less, or leave the picture out"

Tick = Callable[[int, int], None]
"""Told (done, total) between items; may raise to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A picture to look at, the samples that show it, and the views of it that are to be encoded."""

    material: Material
    samples: tuple[Sample, ...]
    views: tuple[View, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What came of it: the crops, or what is wrong with the picture."""

    crops: tuple[Crop, ...] = ()
    faults: tuple[Fault, ...] = ()


def encode_missing(
    latents: LatentCache,
    embeddings: EmbeddingCache | None,
    portions: Sequence[Portion],
    views: Collection[View],
    *,
    look_at_all: bool,
    tick: Tick,
    offering: Offering | None,
) -> None:
    """Whatever of the portions' captions, and of `views`, the caches do not hold yet. `look_at_all`: also look for
    faults of pictures that nothing is encoded of, unless they were encoded before and so are fine."""
    missing = {view for view in views if view not in latents}
    fine = {view.picture_sha256 for view in views if view in latents} if look_at_all else None
    unsaid = [
        [text for text in portion.captions if embeddings is not None and text not in embeddings]
        for portion in portions
    ]
    wanted = [tuple(_wanted(portion, missing, skipped=fine)) for portion in portions]
    count = _Count(total=len(missing) + sum(map(len, unsaid)), tick=tick)
    faults: list[Fault] = []
    offers = _Offers(offering, latents, missing)
    each = (one for of_portion in wanted for one in of_portion)
    with closing(ahead(each, partial(_look, latents), threads=threads_here())) as looked_at:
        for portion, texts, of_portion in zip(portions, unsaid, wanted, strict=True):
            if embeddings is not None and not faults:
                embeddings.fill(texts, count)
            for _ in of_portion:
                looked = next(looked_at)
                faults += looked.faults
                if not faults:  # the job is lost already, but its owner shall hear of all bad pictures at once
                    latents.add(looked.crops, count)
            if not faults:
                offers.add(portion)
    refuse_if(faults)
    latents.flush()
    offers.make()


def undecodable(sample: Sample, error: pixels.Undecodable) -> Fault:
    """What the owner of the picture is told."""
    return Fault(where=sample.name, message=str(error), hint="replace the file, or leave it out")


class _Count:
    """Called after each item."""

    def __init__(self, *, total: int, tick: Tick) -> None:
        self._done, self._total, self._tick = 0, total, tick
        tick(0, total)

    def __call__(self) -> None:
        self._done += 1
        self._tick(self._done, self._total)


class _Offers:
    """Portions are offered in their order, each when all that is missing of it is encoded."""

    def __init__(self, offering: Offering | None, latents: LatentCache, missing: Collection[View]) -> None:
        self._offering, self._latents, self._missing = offering, latents, missing
        self._begun: deque[Portion] = deque()

    def add(self, portion: Portion) -> None:
        """All pictures of the portion were handed to the cache."""
        if self._offering is not None:
            self._begun.append(portion)
            self.make()

    def make(self) -> None:
        """Offer what is complete."""
        while self._offering is not None and self._begun and self._is_encoded(self._begun[0]):
            self._offering.offer(self._begun.popleft())

    def _is_encoded(self, portion: Portion) -> bool:
        return all(view in self._latents for view in portion.views if view in self._missing)


def _wanted(portion: Portion, missing: Collection[View], *, skipped: Collection[str] | None) -> Iterator[Wanted]:
    """The portion's pictures with those views that are missing. Pictures without any are looked at nonetheless, save
    those that are `skipped`; None stands for all of these."""
    views: dict[str, list[View]] = defaultdict(list)
    for view in portion.views:
        if view in missing:
            views[view.picture_sha256].append(view)
    for material, same in portion.pictures:
        needed = tuple(views[same[0].sha256])
        if needed or (skipped is not None and same[0].sha256 not in skipped):
            yield Wanted(material=material, samples=same, views=needed)


def _look(latents: LatentCache, wanted: Wanted) -> Looked:
    """Decode a picture and cut the views out of it. Run by a thread: changes nothing."""
    first = wanted.samples[0]
    try:
        image = wanted.material.load(first)
    except pixels.Undecodable as error:
        return Looked(faults=tuple(undecodable(sample, error) for sample in wanted.samples))
    if latents.shows_nothing(image, first.sha256, {sample.resolution for sample in wanted.samples}):
        empty = [Fault(where=sample.name, message=EMPTY_MASK, hint=MEND_MASK) for sample in wanted.samples]
        return Looked(faults=tuple(empty))
    return Looked(crops=tuple(latents.crops(image, wanted.views)))
