"""The encoding cache: the platform keeps encodings for the job's next attempt and for jobs that repeat it.

A shard holds the encodings of a portion of the job: of pictures, and of captions where the text encoders are frozen.
It is one safetensors file under a key that is a hash of everything the bits depend on: contents of the pictures, how
they are cut, captions as tokens, weights of the VAE and the text encoders, and the fingerprint of device and
libraries. So a job has the same bits with shards and without.

The rule: an attempt asks for shards when it would have to encode at least WORTH_PIXELS, for those that have something
it needs; it offers each that it asked for in vain as soon as it has encoded all of that portion, MOST_BYTES in all.
So a short job neither asks nor uploads, an attempt that resumes near the end encodes the little it needs rather than
fetch everything, and what an attempt offers is never half of a shard. One shard with all of a job, as there were
before, is asked for too.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.weights_digest import weights_digest
from giornata.diffusion.draws.determinism import fingerprint
from giornata.diffusion.draws.sample_order import Sample
from giornata.diffusion.encode.captions import Embedding, EmbeddingCache
from giornata.diffusion.encode.latent_batches import RowsOf, one_row
from giornata.diffusion.encode.latents import CROP_VARIANTS, CropPolicy, CropView, LatentCache, LatentEntry
from giornata.diffusion.encode.pixels import CropPlacement
from giornata.diffusion.tensor_file import (
    NOT_AS_WRITTEN,
    UnreadableTensorFile,
    canonical_json,
    json_sha256,
    read_tensor_file,
    write_tensor_file,
)
from giornata.domain.files.caption_length import CHUNK
from giornata.domain.jobs.reasons import Reason
from giornata.workloads.interface import Reporter
from giornata.workloads.train.faults import reason_of
from giornata.workloads.train.inputs.sample_set import SampleSet

# ---- the contents of shards
#
# Each shard is kept as soon as it is encoded, so that an attempt that is killed before its first step leaves it.
# Contents are a function of the job alone, whatever an attempt still needs of it, and so are the keys of
# the shards. A small job is one shard.

PORTION_PIXELS = 32 * 2**20
"""The pixels of 32 pictures of 1024 x 1024: seconds of a fast GPU, a minute of a slow one; 16 MiB to upload."""
PORTION_CAPTIONS = 64
"""The captions of a portion: 40 MiB for SDXL."""

Picture = tuple[SampleSet, tuple[Sample, ...]]
"""A distinct picture: where it is had from, and the samples that show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContents:
    """The contents of one shard: pictures, every view of them that the job will ever look at (some have none), and
    captions."""

    pictures: tuple[Picture, ...] = ()
    views: tuple[CropView, ...] = ()
    captions: tuple[str, ...] = ()


def shard_contents(
    sample_sets: Iterable[SampleSet],
    views: Iterable[CropView],
    captions: Sequence[str],
    *,
    view_pixels: int,
    pixels: int,
) -> tuple[ShardContents, ...]:
    """Divide the job into shards, the pictures in the order of their sample sets. `views` are those of the whole job,
    of about `view_pixels` each; `pixels` is how many make a portion full."""
    of_picture: dict[str, list[CropView]] = defaultdict(list)
    for view in views:
        of_picture[view.picture_sha256].append(view)
    groups: list[list[Picture]] = [[]]
    filled = 0
    for sample_set, samples in _distinct(sample_sets):
        if filled >= pixels:
            groups.append([])
            filled = 0
        groups[-1].append((sample_set, samples))
        filled += len(of_picture[samples[0].sha256]) * view_pixels
    texts = [captions[at : at + PORTION_CAPTIONS] for at in range(0, len(captions), PORTION_CAPTIONS)]
    return tuple(
        ShardContents(
            pictures=tuple(pictures),
            views=tuple(view for _, samples in pictures for view in of_picture[samples[0].sha256]),
            captions=tuple(said),
        )
        for pictures, said in zip_longest(groups, texts, fillvalue=())
    )


def _distinct(sample_sets: Iterable[SampleSet]) -> list[Picture]:
    found: dict[str, tuple[SampleSet, list[Sample]]] = {}
    for sample_set in sample_sets:
        for sample in sample_set.samples:
            found.setdefault(sample.sha256, (sample_set, []))[1].append(sample)
    return [(sample_set, tuple(samples)) for sample_set, samples in found.values()]


FORMAT = 1
WORTH_PIXELS = 16 * 2**20
"""The pixels of sixteen pictures of 1024 x 1024: a second or two of a fast GPU, and half a minute of a slow one."""
MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardKeys:
    """The keys of a job's shards. `with_captions`: its text encoders are frozen. `rows_of`: how many pictures of a
    size are encoded together."""

    base: BaseModel
    crop_policy: CropPolicy
    with_captions: bool
    max_token_length: int = CHUNK
    rows_of: RowsOf = one_row

    def of(self, views: Iterable[CropView], captions: Sequence[str]) -> str:
        """Return the key of the shard that holds these. One without captions does not depend on text encoders."""
        said = captions if captions and self.with_captions else None
        return shard_key(
            self.base, self.crop_policy, views, said, max_token_length=self.max_token_length, rows_of=self.rows_of
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingCache:
    """The cache from which an attempt gets shards, and in which it leaves them. `worth_pixels`: see the rule above;
    `portion_pixels`: see `shard_contents`. `save` has the signature of safetensors' own."""

    reporter: Reporter
    directory: Path
    worth_pixels: int = WORTH_PIXELS
    portion_pixels: int = PORTION_PIXELS
    save: Callable[..., None] = save_file

    def opened(
        self,
        keys: ShardKeys,
        portions: Sequence[ShardContents],
        views: Collection[CropView],
        latents: LatentCache,
        embeddings: EmbeddingCache | None,
    ) -> "CacheWriter":
        """Fill the caches with the portions' shards that exist; `views` are those that the attempt needs. Returns the
        writer that takes the shards to be kept."""
        cache_writer = CacheWriter(encoding_cache=self, latents=latents, embeddings=embeddings)
        if len(portions) > 1:
            together = [view for portion in portions for view in portion.views]
            captions = [text for portion in portions for text in portion.captions]
            if self.restore(keys.of(together, captions), latents, embeddings):
                return cache_writer
        for portion in portions:
            if not portion.captions and not any(view in views for view in portion.views):
                continue
            key = keys.of(portion.views, portion.captions)
            if not self.restore(key, latents, embeddings) and all(view in views for view in portion.views):
                cache_writer.wanted[portion.views, portion.captions] = key
        return cache_writer

    def restore(self, key: str, latents: LatentCache, embeddings: EmbeddingCache | None) -> bool:
        """Fill the caches from the shard under `key`. False, and the caches as they were, when none can be had."""
        path = self.reporter.cache_get(key)
        if path is None:
            return False
        try:
            shard = read_shard(path, key)
        except UnreadableTensorFile as error:
            self.reporter.log(f"the encodings that were kept cannot be used, and are made again: {error}")
            return False
        for view, placement, entry in shard.views:
            latents.put(view, placement, entry)
        for caption, embedding in shard.embeddings:
            if embeddings is not None:
                embeddings.put(caption, embedding)
        return True


@dataclass(slots=True, kw_only=True, eq=False)
class CacheWriter:
    """A writer that hands shards over while an attempt encodes. `wanted` are the keys of shards that the cache lacks,
    by their contents; `left_bytes` is how much more may be kept. Once something is left out, so is all that follows.
    """

    encoding_cache: EncodingCache
    latents: LatentCache
    embeddings: EmbeddingCache | None
    wanted: dict[tuple[tuple[CropView, ...], tuple[str, ...]], str] = field(default_factory=dict)
    left_bytes: int = MOST_BYTES
    written: int = 0

    def offer(self, portion: ShardContents) -> None:
        """Write the shard of a portion that is encoded, if it is wanted, and hand it over. A disk that is full costs
        the shard, and not the job."""
        key = self.wanted.pop((portion.views, portion.captions), None)
        if key is None:
            return
        shard = shard_of(self.latents, portion.views, self.embeddings, portion.captions)
        self.left_bytes -= sum(tensor.nbytes for tensor in shard.tensors()[0].values())
        if self.left_bytes < 0:
            self._keep_no_more(f"{MOST_BYTES / 2**30:.1f} GiB are the most")
            return
        # A name for each: the agent may not have taken the one before.
        path = self.encoding_cache.directory / f"encodings-{self.written:04d}.safetensors"
        try:
            write_shard(path, key, shard, save=self.encoding_cache.save)
        except (OSError, SafetensorError) as error:
            path.with_name(path.name + ".part").unlink(missing_ok=True)
            if reason_of(error) is not Reason.NODE_DISK:
                raise
            self._keep_no_more(str(error))
            return
        self.written += 1
        self.encoding_cache.reporter.cache_put(key, path)

    def _keep_no_more(self, why: str) -> None:
        self.wanted.clear()
        self.encoding_cache.reporter.log(f"encodings are not kept for later: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingShard:
    """Encoded views with their places on their pictures, and embeddings of captions."""

    views: tuple[tuple[CropView, CropPlacement, LatentEntry], ...]
    embeddings: tuple[tuple[str, Embedding], ...]

    def tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the tensors by their names in the file, and what they are. Views that share an entry share its
        tensors."""
        tensors: dict[str, torch.Tensor] = {}
        places: dict[int, int] = {}
        views = []
        for view, placement, entry in self.views:
            place = places.setdefault(id(entry), len(places))
            tensors |= {f"view.{place}.mean": entry.mean_CHW, f"view.{place}.std": entry.std_CHW}
            if entry.mask_HW is not None:
                tensors[f"view.{place}.mask"] = entry.mask_HW
            views.append({"entry": place, "placement": asdict(placement), "view": _told(view)})
        for place, (_, embedding) in enumerate(self.embeddings):
            tensors[f"text.{place}.prompt"] = embedding.prompt_BLD
            if embedding.pooled_BP is not None:
                tensors[f"text.{place}.pooled"] = embedding.pooled_BP
        return tensors, {"captions": [caption for caption, _ in self.embeddings], "views": views}


def shard_of(
    latents: LatentCache, views: Iterable[CropView], embeddings: EmbeddingCache | None, captions: Iterable[str]
) -> EncodingShard:
    """Return the shard that the caches hold of these views and captions."""
    found, shared = [], dict[tuple[str, CropPlacement], LatentEntry]()
    for view in views:
        entry, placement = latents[view]
        # Of views that share an entry one is held: one that lies on the disk is read anew each time.
        found.append((view, placement, shared.setdefault((view.picture_sha256, placement), entry)))
    texts = () if embeddings is None else tuple((caption, embeddings.batch([caption])) for caption in captions)
    return EncodingShard(views=tuple(found), embeddings=texts)


def shard_key(
    base: BaseModel,
    crop_policy: CropPolicy,
    views: Iterable[CropView],
    captions: Sequence[str] | None,
    *,
    max_token_length: int = CHUNK,
    rows_of: RowsOf = one_row,
) -> str:
    """Hash everything that the encodings of a job depend on. `captions` is None when they are not encoded."""
    cut, views = asdict(crop_policy), list(views)
    if crop_policy.center_crop:
        del cut["seed"]  # decides nothing then, and jobs with other seeds can share
    if crop_policy.no_upscale_steps is None:
        del cut["no_upscale_steps"]  # shards from before there was such a thing keep their keys
    lesser = sorted({view.resolution for view in views if view.resolution is not None})
    if not lesser:
        del cut["sides"]
    depends: dict[str, Any] = {
        "captions": None if captions is None else [[text, *_tokens(base, text)] for text in sorted(captions)],
        "crop_variants": CROP_VARIANTS,
        "family": None if captions is None else base.family.name,  # which of the text encoders' layers count
        "fingerprint": fingerprint(base.device),
        "format": FORMAT,
        "framing": cut,
        "text_encoders": None if captions is None else [weights_digest(each) for each in base.text_encoders],
        "vae": weights_digest(base.vae),
        "views": sorted([*_told(view).values()] for view in views),
    }
    if captions is not None and max_token_length != CHUNK:
        depends["max_token_length"] = max_token_length
    sizes = list(crop_policy.buckets or ((crop_policy.resolution, crop_policy.resolution),))
    rows = [rows_of(size) for size in (*sizes, *(size for each in lesser for size in crop_policy.buckets_at(each)))]
    if max(rows) > 1:
        depends["encoded_together"] = rows
    return "encodings-" + json_sha256(depends)


def _told(view: CropView) -> dict[str, Any]:
    """Return the fields of a view, without a resolution where it is the job's."""
    return {name: value for name, value in asdict(view).items() if value is not None}


def _tokens(base: BaseModel, text: str) -> list[list[int]]:
    return [tokenizer(text, verbose=False).input_ids for tokenizer in base.tokenizers]


def write_shard(path: Path, key: str, shard: EncodingShard, *, save: Callable[..., None] = save_file) -> None:
    """Write one uncompressed file with deterministic bytes, aside, and rename it."""
    tensors, index = shard.tensors()
    write_tensor_file(path, {"index": index, "key": key, "sha256": _digest(tensors, index)}, tensors, save=save)


def read_shard(path: Path, key: str) -> EncodingShard:
    """Read the shard under `key`, on the CPU. Raises UnreadableTensorFile."""
    header, tensors = read_tensor_file(path, key)
    try:
        if header["sha256"] != _digest(tensors, header["index"]):
            raise UnreadableTensorFile(NOT_AS_WRITTEN)
        return _parsed(tensors, header["index"])
    except (KeyError, TypeError) as error:
        raise UnreadableTensorFile(f"cannot be read ({type(error).__name__}: {error})") from error


def _parsed(tensors: dict[str, torch.Tensor], index: dict[str, Any]) -> EncodingShard:
    entries: dict[int, LatentEntry] = {}
    views = []
    for row in index["views"]:
        place = row["entry"]
        if place not in entries:
            mean_CHW, std_CHW = tensors[f"view.{place}.mean"], tensors[f"view.{place}.std"]
            mask_HW = tensors.get(f"view.{place}.mask")
            entries[place] = LatentEntry(mean_CHW=mean_CHW, std_CHW=std_CHW, mask_HW=mask_HW)
        views.append((CropView(**row["view"]), _placement(row["placement"]), entries[place]))
    embeddings = [
        (
            caption,
            Embedding(prompt_BLD=tensors[f"text.{place}.prompt"], pooled_BP=tensors.get(f"text.{place}.pooled")),
        )
        for place, caption in enumerate(index["captions"])
    ]
    return EncodingShard(views=tuple(views), embeddings=tuple(embeddings))


def _placement(fields: dict[str, Any]) -> CropPlacement:
    return CropPlacement(
        original_size=tuple(fields["original_size"]),
        crop_top_left=tuple(fields["crop_top_left"]),
        target_size=tuple(fields["target_size"]),
        flip=fields["flip"],
    )


def _digest(tensors: dict[str, torch.Tensor], index: dict[str, Any]) -> str:
    digest = hashlib.sha256(canonical_json(index).encode("ascii"))
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode("ascii"))
        # As bytes: numpy knows no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
