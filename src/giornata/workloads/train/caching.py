"""The phase before the first step: whatever would be computed again and again is computed once."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from giornata.diffusion import pixels
from giornata.diffusion.captions import EmbeddingCache, Wording
from giornata.diffusion.latents import Framing, LatentCache, View
from giornata.diffusion.models import BaseModel
from giornata.diffusion.order import Sample
from giornata.domain.errors import Fault
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.draws import Draws
from giornata.workloads.train.material import Material, refuse_if

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
    base: BaseModel, spec: TrainSpec, materials: tuple[Material, ...], *, seed: int, first_step: int, tick: Tick
) -> Supplies:
    """Encode pictures and captions for the steps from `first_step` on.

    Raises WorkloadFailed(BAD_DATA) naming every picture that cannot be decoded. A job that starts looks at all of
    its pictures; one that resumes only at those that it still needs, for they were looked at before.
    """
    framing = Framing(
        seed=seed, resolution=spec.resolution, center_crop=spec.center_crop, random_flip=spec.random_flip
    )
    draws = Draws(
        seed=seed,
        batch=spec.train_batch_size,
        micros=spec.gradient_accumulation_steps,
        timesteps=range(spec.min_timestep, min(spec.max_timestep, base.noise_scheduler.config.num_train_timesteps)),
        framing=framing,
        materials=materials,
        noise_offset=spec.noise_offset,
        wording=Wording(
            seed=seed,
            shuffled=spec.shuffle_caption,
            kept=spec.keep_tokens,
            separator=spec.caption_separator,
            dropout_rate=spec.caption_dropout_rate,
        ),
    )
    latents = LatentCache(vae=base.vae, vae_key=f"{base.key}|{base.vae.dtype}", framing=framing)
    views = draws.views(first_step, spec.max_train_steps)
    texts = draws.wording.all_of(sample.caption for one in materials for sample in one.samples)
    if spec.train_text_encoder:
        texts = None
    count = _Count(total=len(views) + len(texts or ()), tick=tick)
    embeddings = None
    if texts is not None:
        embeddings = EmbeddingCache(
            tokenizers=base.tokenizers,
            text_encoders=base.text_encoders,
            encoder_key=f"{base.key}|{base.dtype}",
            family=base.family,
        )
        embeddings.fill(texts, count)
    _encode_pictures(latents, materials, views, look_at_all=first_step == 0, done_one=count)
    return Supplies(draws=draws, latents=latents, embeddings=embeddings)


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
    materials: tuple[Material, ...],
    views: Iterable[View],
    *,
    look_at_all: bool,
    done_one: Callable[[], None],
) -> None:
    wanted: dict[str, list[View]] = defaultdict(list)
    for view in views:
        wanted[view.picture_sha256].append(view)
    faults: list[Fault] = []
    for material, same in _pictures(materials):
        needed = wanted[same[0].sha256]
        if not needed and not look_at_all:
            continue
        try:
            image = material.load(same[0])
        except pixels.Undecodable as error:
            hint = "replace the file, or leave it out"
            faults += [Fault(where=sample.name, message=str(error), hint=hint) for sample in same]
            continue
        if not faults:  # the job is lost already, but its owner shall hear of all bad pictures at once
            latents.add(image, needed, done_one)
    refuse_if(faults)


def _pictures(materials: tuple[Material, ...]) -> list[tuple[Material, list[Sample]]]:
    """Every distinct picture with the samples that show it."""
    found: dict[str, tuple[Material, list[Sample]]] = {}
    for material in materials:
        for sample in material.samples:
            found.setdefault(sample.sha256, (material, []))[1].append(sample)
    return list(found.values())
