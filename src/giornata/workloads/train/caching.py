"""The phase before the first step: whatever would be computed again and again is computed once."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from giornata.diffusion import pixels
from giornata.diffusion.captions import EmbeddingCache, Wording
from giornata.diffusion.dropping import ticket
from giornata.diffusion.latents import Framing, LatentCache, View
from giornata.diffusion.models import BaseModel
from giornata.diffusion.multires import Multires
from giornata.diffusion.order import Sample
from giornata.domain.errors import Fault
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.regularisation import has_dropout
from giornata.workloads.train.draws import Draws
from giornata.workloads.train.material import Material, refuse_if
from giornata.workloads.train.packs import Keys, Offering, Shelf
from giornata.workloads.train.portions import PORTION_PIXELS, Portion, portions_of

EMPTY_MASK = "its mask leaves nothing to learn: it is empty, or wherever the picture is cropped"
MEND_MASK = "mend the mask (its alpha channel), set enable_bucket, which crops less, or leave the picture out"

Tick = Callable[[int, int], None]
"""Told (done, total) between items; may raise to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """What the steps live on. `embeddings` is None when the text encoders must run at every step: they learn, or what
    is said changes all the time.
    """

    draws: Draws
    latents: LatentCache
    embeddings: EmbeddingCache | None


def prepare(
    base: BaseModel,
    spec: TrainSpec,
    materials: tuple[Material, ...],
    *,
    seed: int,
    first_step: int,
    tick: Tick,
    shelf: Shelf | None = None,
) -> Supplies:
    """Encode pictures and captions for the steps from `first_step` on, or take them from `shelf`.

    Raises WorkloadFailed(BAD_DATA) naming every picture that cannot be decoded, or has an empty mask. A job that
    starts looks at all of its pictures; one that resumes only at those that it still needs, for they were looked at
    before.
    """
    framing = Framing.of(spec, seed=seed)
    if spec.enable_bucket:
        materials = _in_buckets(materials, framing)
    draws = Draws(
        seed=seed,
        batch=spec.train_batch_size,
        micros=spec.gradient_accumulation_steps,
        timesteps=range(spec.min_timestep, min(spec.max_timestep, base.noise_scheduler.config.num_train_timesteps)),
        framing=framing,
        materials=materials,
        noise_offset=spec.noise_offset,
        multires=Multires.of(spec),
        ip_noise_gamma=spec.ip_noise_gamma,
        ticket=partial(ticket, spec) if has_dropout(spec) else None,
        wording=Wording(
            seed=seed,
            shuffled=spec.shuffle_caption,
            kept=spec.keep_tokens,
            separator=spec.caption_separator,
            dropout_rate=spec.caption_dropout_rate,
        ),
    )
    latents = LatentCache(vae=base.vae, vae_key=f"{base.key}|{base.vae.dtype}", framing=framing)
    texts, embeddings = _texts(spec, draws), None
    if texts is not None:
        embeddings = EmbeddingCache(
            tokenizers=base.tokenizers,
            text_encoders=base.text_encoders,
            encoder_key=f"{base.key}|{base.dtype}",
            family=base.family,
        )
    views = draws.views(first_step, spec.max_train_steps)
    if shelf is not None and len(views) * spec.resolution**2 < shelf.worth_pixels:
        shelf = None
    portions = portions_of(
        materials,
        draws.views(0, spec.max_train_steps) if shelf is not None and first_step > 0 else views,
        texts or (),
        view_pixels=spec.resolution**2,
        pixels=PORTION_PIXELS if shelf is None else shelf.portion_pixels,
    )
    offering: Offering | None = None
    if shelf is not None:
        keys = Keys(base=base, framing=framing, with_captions=texts is not None)
        offering = shelf.opened(keys, portions, views.keys(), latents, embeddings)
    _encode(latents, embeddings, portions, views, look_at_all=first_step == 0, tick=tick, offering=offering)
    return Supplies(draws=draws, latents=latents, embeddings=embeddings)


def _texts(spec: TrainSpec, draws: Draws) -> list[str] | None:
    """All that will be said; None when text encoders have to run at every step."""
    if spec.train_text_encoder or spec.train_text_encoder_ti:
        return None
    captions = [sample.caption for material in draws.materials for sample in material.samples]
    texts = draws.wording.all_of(captions)
    if texts is not None and spec.prior_prediction:
        texts = sorted({*texts, str(spec.class_prompt)})
    return texts


def _in_buckets(materials: tuple[Material, ...], framing: Framing) -> tuple[Material, ...]:
    """The materials with their pictures sorted into buckets, by their headers. Raises WorkloadFailed(BAD_DATA) naming
    every picture that cannot be decoded."""
    sorted_in: list[Material] = []
    for material in materials:
        try:
            buckets = {sample.sha256: framing.target(material.size(sample)) for sample in material.samples}
        except pixels.Undecodable:
            refuse_if([fault for each in materials for fault in _undecodables(each)])
            raise
        sorted_in.append(replace(material, buckets=buckets))
    return tuple(sorted_in)


def _undecodables(material: Material) -> list[Fault]:
    faults = []
    for sample in material.samples:
        try:
            material.load(sample)
        except pixels.Undecodable as error:
            faults.append(_undecodable(sample, error))
    return faults


def _undecodable(sample: Sample, error: pixels.Undecodable) -> Fault:
    return Fault(where=sample.name, message=str(error), hint="replace the file, or leave it out")


def _encode(
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
    count = _Count(total=len(missing) + sum(map(len, unsaid)), tick=tick)
    faults: list[Fault] = []
    for portion, texts in zip(portions, unsaid, strict=True):
        if embeddings is not None and not faults:
            embeddings.fill(texts, count)
        _encode_pictures(latents, portion, missing, skipped=fine, done_one=count, faults=faults)
        if offering is not None and not faults:
            offering.offer(portion)
    refuse_if(faults)


class _Count:
    """Called after each item."""

    def __init__(self, *, total: int, tick: Tick) -> None:
        self._done, self._total, self._tick = 0, total, tick
        tick(0, total)

    def __call__(self) -> None:
        self._done += 1
        self._tick(self._done, self._total)


def _encode_pictures(
    latents: LatentCache,
    portion: Portion,
    missing: Collection[View],
    *,
    skipped: Collection[str] | None,
    done_one: Callable[[], None],
    faults: list[Fault],
) -> None:
    """Encode those views of a portion that are missing. Pictures without any are looked at nonetheless, save those
    that are `skipped`; None stands for all of these. What is wrong is added to `faults`."""
    wanted: dict[str, list[View]] = defaultdict(list)
    for view in portion.views:
        if view in missing:
            wanted[view.picture_sha256].append(view)
    for material, same in portion.pictures:
        needed = wanted[same[0].sha256]
        if not needed and (skipped is None or same[0].sha256 in skipped):
            continue
        try:
            image = material.load(same[0])
        except pixels.Undecodable as error:
            faults += [_undecodable(sample, error) for sample in same]
            continue
        if latents.shows_nothing(image, same[0].sha256):
            faults += [Fault(where=sample.name, message=EMPTY_MASK, hint=MEND_MASK) for sample in same]
            continue
        if not faults:  # the job is lost already, but its owner shall hear of all bad pictures at once
            latents.add(image, needed, done_one)
