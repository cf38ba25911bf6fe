"""The phase before the first step: whatever would be computed again and again is computed once."""

from dataclasses import dataclass, replace
from functools import partial

from giornata.diffusion import pixels
from giornata.diffusion.captions import EMBEDDING_MEMORY_BYTES, EmbeddingCache, Wording
from giornata.diffusion.dropping import ticket
from giornata.diffusion.entry_store import EntryStore
from giornata.diffusion.latent_batches import RowsOf, rows_on
from giornata.diffusion.latents import Framing, LatentCache
from giornata.diffusion.models import BaseModel
from giornata.diffusion.multires import Multires
from giornata.domain.errors import Fault
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.regularisation import has_dropout
from giornata.workloads.train.draws import Draws
from giornata.workloads.train.encoding import Tick, encode_missing, undecodable
from giornata.workloads.train.material import Material, refuse_if
from giornata.workloads.train.packs import Keys, Offering, Shelf
from giornata.workloads.train.portions import PORTION_PIXELS, portions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """What the steps live on. `embeddings` is None when the text encoders must run at every step: they learn, or what
    is said changes all the time.
    """

    draws: Draws
    latents: LatentCache
    embeddings: EmbeddingCache | None

    def close(self) -> None:
        """Give back what latents and embeddings take, on the disk too. Nothing may be drawn afterwards."""
        self.latents.close()
        if self.embeddings is not None:
            self.embeddings.close()


def prepare(
    base: BaseModel,
    spec: TrainSpec,
    materials: tuple[Material, ...],
    *,
    seed: int,
    first_step: int,
    tick: Tick,
    shelf: Shelf | None = None,
    rows_of: RowsOf | None = None,
) -> Supplies:
    """Encode pictures and captions for the steps from `first_step` on, or take them from `shelf`. `rows_of` says how
    many pictures of a size are encoded together (None: what suits the base's device). Encodings for which there is no
    room in memory lie in the folder of the shelf.

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
            keep_separator=spec.keep_tokens_separator,
            dropout_rate=spec.caption_dropout_rate,
        ),
    )
    rows_of = rows_on(base.vae, base.device) if rows_of is None else rows_of
    folder = None if shelf is None else shelf.directory
    entries = EntryStore(memory_bytes=spec.latent_memory_bytes, directory=folder)
    vae_key = f"{base.key}|{base.vae.dtype}"
    latents = LatentCache(vae=base.vae, vae_key=vae_key, framing=framing, entries=entries, rows_of=rows_of)
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
        keys = Keys(
            base=base,
            framing=framing,
            with_captions=texts is not None,
            max_token_length=spec.max_token_length,
            rows_of=rows_of,
        )
        offering = shelf.opened(keys, portions, views.keys(), latents, embeddings)
    encode_missing(latents, embeddings, portions, views, look_at_all=first_step == 0, tick=tick, offering=offering)
    return Supplies(draws=draws, latents=latents, embeddings=embeddings)


def together_on(base: BaseModel, spec: TrainSpec) -> dict[str, int]:
    """What goes into the fingerprint where pictures are encoded together: how many of the job's square."""
    rows = rows_on(base.vae, base.device)((spec.resolution, spec.resolution))
    return {"encoded_together": rows} if rows > 1 else {}


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
            buckets = {
                (sample.sha256, sample.resolution): framing.target(material.size(sample), sample.resolution)
                for sample in material.samples
            }
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
            faults.append(undecodable(sample, error))
    return faults
