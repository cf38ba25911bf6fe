"""Encodes captions and views of pictures once, before the steps, or takes them from the encoding cache."""

import os
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from giornata.diffusion.adapter.dropping import ticket
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import Multires
from giornata.diffusion.draws.sample_order import Sample
from giornata.diffusion.encode import pixels
from giornata.diffusion.encode.captions import EMBEDDING_MEMORY_BYTES, CaptionAugmentation, EmbeddingCache
from giornata.diffusion.encode.latent_batches import RowsOf, rows_on
from giornata.diffusion.encode.latent_store import LatentStore
from giornata.diffusion.encode.latents import CroppedPixels, CropPolicy, CropView, LatentCache
from giornata.domain.errors import Fault
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.objective import has_dropout
from giornata.workloads.train.inputs.encoding_cache import (
    PORTION_PIXELS,
    CacheWriter,
    EncodingCache,
    ShardContents,
    ShardKeys,
    shard_contents,
)
from giornata.workloads.train.inputs.sample_set import SampleSet, refuse_if
from giornata.workloads.train.inputs.sampling_plan import SamplingPlan

EMPTY_MASK = "its mask leaves nothing to learn: it is empty, or wherever the picture is cropped"
MEND_MASK = "mend the mask (its alpha channel), set enable_bucket, which crops less, or leave the picture out"

Tick = Callable[[int, int], None]
"""Told (done, total) between items; may raise to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureToEncode:
    """A picture to look at, the samples that show it, and the views of it that are to be encoded."""

    sample_set: SampleSet
    samples: tuple[Sample, ...]
    views: tuple[CropView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPicture:
    """The result of decoding one picture: its crops, or its faults."""

    crops: tuple[CroppedPixels, ...] = ()
    faults: tuple[Fault, ...] = ()


def encode_missing(
    latents: LatentCache,
    embeddings: EmbeddingCache | None,
    portions: Sequence[ShardContents],
    views: Collection[CropView],
    *,
    look_at_all: bool,
    tick: Tick,
    cache_writer: CacheWriter | None,
) -> None:
    """Encode those of the portions' captions, and of `views`, that the caches do not hold yet. `look_at_all`: also
    look for faults of pictures that nothing is encoded of, unless they were encoded before and so are fine."""
    missing = {view for view in views if view not in latents}
    fine = {view.picture_sha256 for view in views if view in latents} if look_at_all else None
    unsaid = [
        [text for text in portion.captions if embeddings is not None and text not in embeddings]
        for portion in portions
    ]
    wanted = [tuple(_wanted(portion, missing, skipped=fine)) for portion in portions]
    count = _Count(total=len(missing) + sum(map(len, unsaid)), tick=tick)
    faults: list[Fault] = []
    offers = _Offers(cache_writer, latents, missing)
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
    """Return the fault that the owner of the picture reads."""
    return Fault(where=sample.name, message=str(error), hint="replace the file, or leave it out")


class _Count:
    """A counter of encoded items, called after each."""

    def __init__(self, *, total: int, tick: Tick) -> None:
        self._done, self._total, self._tick = 0, total, tick
        tick(0, total)

    def __call__(self) -> None:
        self._done += 1
        self._tick(self._done, self._total)


class _Offers:
    """The portions to offer, in their order, each when all that is missing of it is encoded."""

    def __init__(self, cache_writer: CacheWriter | None, latents: LatentCache, missing: Collection[CropView]) -> None:
        self._offering, self._latents, self._missing = cache_writer, latents, missing
        self._begun: deque[ShardContents] = deque()

    def add(self, portion: ShardContents) -> None:
        """Note that all pictures of the portion were handed to the cache."""
        if self._offering is not None:
            self._begun.append(portion)
            self.make()

    def make(self) -> None:
        """Offer the portions that are complete, in order."""
        while self._offering is not None and self._begun and self._is_encoded(self._begun[0]):
            self._offering.offer(self._begun.popleft())

    def _is_encoded(self, portion: ShardContents) -> bool:
        return all(view in self._latents for view in portion.views if view in self._missing)


def _wanted(
    portion: ShardContents, missing: Collection[CropView], *, skipped: Collection[str] | None
) -> Iterator[PictureToEncode]:
    """Yield the portion's pictures with those views that are missing. Pictures without any are looked at nonetheless,
    save those that are `skipped`; None stands for all of these."""
    views: dict[str, list[CropView]] = defaultdict(list)
    for view in portion.views:
        if view in missing:
            views[view.picture_sha256].append(view)
    for sample_set, same in portion.pictures:
        needed = tuple(views[same[0].sha256])
        if needed or (skipped is not None and same[0].sha256 not in skipped):
            yield PictureToEncode(sample_set=sample_set, samples=same, views=needed)


def _look(latents: LatentCache, wanted: PictureToEncode) -> DecodedPicture:
    """Decode a picture and cut the views out of it. Run by a thread: changes nothing."""
    first = wanted.samples[0]
    try:
        image = wanted.sample_set.load(first)
    except pixels.Undecodable as error:
        return DecodedPicture(faults=tuple(undecodable(sample, error) for sample in wanted.samples))
    if latents.shows_nothing(image, first.sha256, {sample.resolution for sample in wanted.samples}):
        empty = [Fault(where=sample.name, message=EMPTY_MASK, hint=MEND_MASK) for sample in wanted.samples]
        return DecodedPicture(faults=tuple(empty))
    return DecodedPicture(crops=tuple(latents.crops(image, wanted.views)))


# ---- the caching phase, before the first step


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedInputs:
    """The encoded inputs that the training steps read. `embeddings` is None when the text encoders must run at every
    step: they learn, or the captions change all the time."""

    draws: SamplingPlan
    latents: LatentCache
    embeddings: EmbeddingCache | None

    def close(self) -> None:
        """Give back the memory and disk of latents and embeddings. Nothing may be drawn afterwards."""
        self.latents.close()
        if self.embeddings is not None:
            self.embeddings.close()


def cache_inputs(
    base: BaseModel,
    spec: TrainSpec,
    sample_sets: tuple[SampleSet, ...],
    *,
    seed: int,
    first_step: int,
    tick: Tick,
    encoding_cache: EncodingCache | None = None,
    rows_of: RowsOf | None = None,
) -> CachedInputs:
    """Encode pictures and captions for the steps from `first_step` on, or take them from `encoding_cache`.

    `rows_of` says how many pictures of a size are encoded together (None: what suits the base's device). Encodings
    that exceed `latent_memory_bytes` lie in the folder of the cache.

    Raises WorkloadFailed(BAD_DATA) naming every picture that cannot be decoded, or has an empty mask. A job that
    starts looks at all of its pictures; one that resumes only at those that it still needs, for they were looked at
    before.
    """
    crop_policy = CropPolicy.of(spec, seed=seed)
    if spec.enable_bucket:
        sample_sets = _in_buckets(sample_sets, crop_policy)
    draws = SamplingPlan(
        seed=seed,
        batch=spec.train_batch_size,
        micros=spec.gradient_accumulation_steps,
        timesteps=range(spec.min_timestep, min(spec.max_timestep, base.noise_scheduler.config.num_train_timesteps)),
        crop_policy=crop_policy,
        sample_sets=sample_sets,
        noise_offset=spec.noise_offset,
        multires=Multires.of(spec),
        ip_noise_gamma=spec.ip_noise_gamma,
        ticket=partial(ticket, spec) if has_dropout(spec) else None,
        augmentation=CaptionAugmentation(
            seed=seed,
            shuffled=spec.shuffle_caption,
            kept=spec.keep_tokens,
            separator=spec.caption_separator,
            keep_separator=spec.keep_tokens_separator,
            dropout_rate=spec.caption_dropout_rate,
        ),
    )
    rows_of = rows_on(base.vae, base.device) if rows_of is None else rows_of
    folder = None if encoding_cache is None else encoding_cache.directory
    entries = LatentStore(memory_bytes=spec.latent_memory_bytes, directory=folder)
    vae_key = f"{base.key}|{base.vae.dtype}"
    latents = LatentCache(vae=base.vae, vae_key=vae_key, crop_policy=crop_policy, entries=entries, rows_of=rows_of)
    texts, embeddings = _texts(spec, draws), None
    if texts is not None:
        embeddings = EmbeddingCache(
            tokenizers=base.tokenizers,
            text_encoders=base.text_encoders,
            encoder_key=f"{base.key}|{base.dtype}",
            family=base.family,
            max_token_length=spec.max_token_length,
            truncation=spec.truncate_captions,
            memory_bytes=min(EMBEDDING_MEMORY_BYTES, spec.latent_memory_bytes),
            directory=folder,
        )
    views = draws.views(first_step, spec.max_train_steps)
    if encoding_cache is not None and len(views) * spec.resolution**2 < encoding_cache.worth_pixels:
        encoding_cache = None
    portions = shard_contents(
        sample_sets,
        draws.views(0, spec.max_train_steps) if encoding_cache is not None and first_step > 0 else views,
        texts or (),
        view_pixels=spec.resolution**2,
        pixels=PORTION_PIXELS if encoding_cache is None else encoding_cache.portion_pixels,
    )
    cache_writer: CacheWriter | None = None
    if encoding_cache is not None:
        keys = ShardKeys(
            base=base,
            crop_policy=crop_policy,
            with_captions=texts is not None,
            max_token_length=spec.max_token_length,
            rows_of=rows_of,
        )
        cache_writer = encoding_cache.opened(keys, portions, views.keys(), latents, embeddings)
    encode_missing(
        latents, embeddings, portions, views, look_at_all=first_step == 0, tick=tick, cache_writer=cache_writer
    )
    return CachedInputs(draws=draws, latents=latents, embeddings=embeddings)


def together_on(base: BaseModel, spec: TrainSpec) -> dict[str, int]:
    """Return the fingerprint entry for pictures that are encoded together: how many of the job's square."""
    rows = rows_on(base.vae, base.device)((spec.resolution, spec.resolution))
    return {"encoded_together": rows} if rows > 1 else {}


def _texts(spec: TrainSpec, draws: SamplingPlan) -> list[str] | None:
    """Return all captions that the steps can use; None when text encoders have to run at every step."""
    if spec.train_text_encoder or spec.train_text_encoder_ti:
        return None
    captions = [sample.caption for sample_set in draws.sample_sets for sample in sample_set.samples]
    texts = draws.augmentation.all_of(captions)
    if texts is not None and spec.prior_prediction:
        texts = sorted({*texts, str(spec.class_prompt)})
    return texts


def _in_buckets(sample_sets: tuple[SampleSet, ...], crop_policy: CropPolicy) -> tuple[SampleSet, ...]:
    """Sort the pictures of each sample set into buckets, by their headers.

    Raises WorkloadFailed(BAD_DATA) naming every picture that cannot be decoded.
    """
    sorted_in: list[SampleSet] = []
    for sample_set in sample_sets:
        try:
            buckets = {
                (sample.sha256, sample.resolution): crop_policy.target(sample_set.size(sample), sample.resolution)
                for sample in sample_set.samples
            }
        except pixels.Undecodable:
            refuse_if([fault for each in sample_sets for fault in _undecodables(each)])
            raise
        sorted_in.append(replace(sample_set, buckets=buckets))
    return tuple(sorted_in)


def _undecodables(sample_set: SampleSet) -> list[Fault]:
    faults = []
    for sample in sample_set.samples:
        try:
            sample_set.load(sample)
        except pixels.Undecodable as error:
            faults.append(undecodable(sample, error))
    return faults


# ---- decoding ahead: threads decode pictures while the device encodes those before them

MOST_THREADS = 4
AHEAD = 2
"""Pictures for each thread that are begun, or done and not taken yet."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def threads_here() -> int:
    """Return the number of threads: one for each processor that is left beside the main thread."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) - 1))


def ahead(items: Iterable[Item], look: Callable[[Item], Result], *, threads: int) -> Generator[Result, None, None]:
    """Yield `look` of each item, in their order. At most AHEAD * `threads` are begun and not taken.

    Close the iterator to end its threads. Raises what `look` raises, when that item's turn has come.
    """
    begun: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            for item in items:
                begun.append(pool.submit(look, item))
                if len(begun) >= AHEAD * threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()
