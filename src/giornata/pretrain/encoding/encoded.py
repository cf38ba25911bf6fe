"""Encoded shards: their folders, their description, and the check that they fit a run.

`<latents>/<resolution>/shard-XXXXX.parquet` has the rows of the source's shard of the same number, in the same order:
columns.STORED_LATENTS and `latent_shape`. `<latents>/text/shard-XXXXX.parquet` has their text, once for all
resolutions. Beside each lies a note of its size and hash. `about.json` describes the shards of a folder before the
first is written; `manifest.json` describes and lists them after the last. `empty.safetensors` is the embedding of the
empty caption.

The first version stored the text within the shards of each resolution. Such folders are refused.
"""

import json
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from safetensors.torch import load, save

from giornata.diffusion.encode.captions import Embedding
from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.manifest import MANIFEST, Manifest, Shard, json_bytes
from giornata.pretrain.data.shards import shard_name
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoder import Encoder
from giornata.pretrain.encoding.transforms import CaptionChoice, several_captions
from giornata.protocol.pretraining import Mode, PretrainConfig

ABOUT, EMPTY = "about.json", "empty.safetensors"
TEXT = "text"
"""The folder of the text, beside those of the resolutions."""
PROMPT, POOLED = "prompt_LD", "pooled_P"
READERS = 16
"""Threads that read the notes of earlier commands: each note is a request to the storage."""
AGAIN = "name another folder in encode.latents, or remove this one and run `giornata pretrain encode`"


def latents_top(config: PretrainConfig) -> Storage:
    own = config.encode.latents
    return Storage.at(config.storage) / "latents" if own is None else Storage.at(own)


def latents_storage(config: PretrainConfig, part: int | str) -> Storage:
    """The folder of the shards of this resolution, or of TEXT."""
    return latents_top(config) / str(part)


def read_manifest(storage: Storage, *, hint: str = "") -> Manifest:
    """The manifest of a folder of shards. Raises InvalidInput when there is none."""
    try:
        content = storage.read(MANIFEST)
    except FileNotFoundError:
        raise InvalidInput([Fault(where=str(storage), message=f"holds no {MANIFEST}", hint=hint)]) from None
    return Manifest.from_bytes(content, where=str(storage / MANIFEST))


def source_manifest(config: PretrainConfig) -> Manifest:
    return read_manifest(Storage.at(config.data.shards), hint="make it with `giornata pretrain ingest`")


def stores_text(config: PretrainConfig) -> bool:
    return config.encode.store_text and config.encode.mode is not Mode.HYBRID


def wanted_about(config: PretrainConfig, part: int | str, source: Manifest) -> dict[str, Any]:
    """The description of a part, as far as it is known without an encoder."""
    data, model = config.data, config.model
    drawn = data.random_flip or not data.center_crop
    wanted = {
        "source": source.digest,
        "seed": config.seed if model.random_encoders else None,
        "architecture": model.architecture.value,
        "random_encoders": model.random_encoders,
    }
    if part == TEXT:
        if stores_text(config) and several_captions(source):
            choice = CaptionChoice(seed=config.seed, weights=config.data.caption_weights)
            wanted["caption_choice"] = json.loads(json.dumps(asdict(choice)))
        return wanted
    return {
        **wanted,
        "resolution": int(part),
        "enable_bucket": data.enable_bucket,
        "bucket_reso_steps": data.bucket_reso_steps if data.enable_bucket else None,
        "center_crop": data.center_crop,
        "random_flip": data.random_flip,
        "seed": config.seed if drawn or model.random_encoders else None,
    }


def encoded_manifest(config: PretrainConfig, resolution: int, source: Manifest) -> Manifest:
    """The manifest of latents for this run. Raises InvalidInput when there are none of this source and these options.

    In a mode that reads text, the text must be there too. The architecture is compared, and not the model's name:
    `encode` compares the weights.
    """
    found = _manifest_as_wanted(config, resolution, source)
    if stores_text(config):
        text = _manifest_as_wanted(config, TEXT, source)
        refuse_others(latents_storage(config, TEXT), text.about, {"encoder": found.about.get("encoder")})
    return found


def _manifest_as_wanted(config: PretrainConfig, part: int | str, source: Manifest) -> Manifest:
    storage = latents_storage(config, part)
    found = read_manifest(storage, hint="make it with `giornata pretrain encode`")
    refuse_others(storage, found.about, wanted_about(config, part, source))
    return found


def refuse_others(storage: Storage, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise InvalidInput with a fault for every wanted value that `found` lacks, or for text within the shards."""
    if "text" in found:
        message = "was written by the first version, with the text within the latents, which is not read any more"
        raise InvalidInput([Fault(where=str(storage), message=message, hint=AGAIN)])
    faults = [
        Fault(where=str(storage), message=f"{name} is {found.get(name)!r}, and {value!r} is wanted", hint=AGAIN)
        for name, value in wanted.items()
        if found.get(name) != value
    ]
    if faults:
        raise InvalidInput(faults)


def write_empty(storage: Storage, text: Embedding) -> None:
    """Write `text`, the embedding of the empty caption."""
    arrays = {PROMPT: text.prompt_BLD[0]} | ({} if text.pooled_BP is None else {POOLED: text.pooled_BP[0]})
    storage.write(EMPTY, save({name: array.contiguous() for name, array in arrays.items()}))


def read_empty(storage: Storage) -> Embedding:
    """Read the embedding of the empty caption. Raises FileNotFoundError."""
    arrays = load(storage.read(EMPTY))
    pooled_P = arrays.get(POOLED)
    return Embedding(prompt_BLD=arrays[PROMPT][None], pooled_BP=None if pooled_P is None else pooled_P[None])


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPart:
    """A whole file of one part, and the number of its unreadable rows by reason."""

    shard: Shard
    unreadable: dict[str, int]


def note_name(number: int) -> str:
    return f"shard-{number:05d}.json"


def done_before(storage: Storage, number: int) -> EncodedPart | None:
    """The note of a whole shard. None when there is no note, or when the shard has another size."""
    try:
        values = json.loads(storage.read(note_name(number)))
        done = EncodedPart(shard=Shard(**values["shard"]), unreadable=dict(values["unreadable"]))
        whole = storage.size_bytes(shard_name(number)) == done.shard.bytes
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return done if whole else None


class PartFolder:
    """The folder of one part (a resolution, or TEXT): its description, its whole shards, its unreadable rows."""

    def __init__(self, config: PretrainConfig, part: str, source: Manifest, encoder: Encoder) -> None:
        """Claim the folder with its description. Raises InvalidInput when it holds something else."""
        self.part, self.storage = part, latents_storage(config, part)
        by = {"encoder": encoder.digest, "scaling": list(encoder.scaling)}
        self._about = {**wanted_about(config, part, source), **by}
        self._config, self._source = config, source
        self.done: dict[int, EncodedPart] = {}
        self._unreadable: Counter[str] = Counter()
        self._claim()

    def _claim(self) -> None:
        if self.storage.exists(ABOUT):
            refuse_others(self.storage, json.loads(self.storage.read(ABOUT)), self._about)
            return
        if others := self.storage.names():
            message = f"is not empty ({others[0]}) and does not say what it holds"
            hint = "name another folder: encode.latents"
            raise InvalidInput([Fault(where=str(self.storage), message=message, hint=hint)])
        self.storage.write(ABOUT, json_bytes(self._about))

    def look(self) -> None:
        """Find the shards that earlier commands encoded."""
        numbers = range(len(self._source.shards))
        with ThreadPoolExecutor(READERS) as pool:
            for number, each in enumerate(pool.map(partial(done_before, self.storage), numbers)):
                if each is not None:
                    self.add(number, each)

    def add(self, number: int, done: EncodedPart) -> None:
        """Add a whole shard. The cost does not grow with the number of shards."""
        self.done[number] = done
        self._unreadable.update(done.unreadable)

    def fault(self) -> Fault | None:
        """The fault of more unreadable rows than data.max_quarantined_share."""
        share, rows = self._config.data.max_quarantined_share, self._source.rows
        if self._unreadable.total() <= share * rows:
            return None
        first, count = self._unreadable.most_common(1)[0]
        message = f"{self._unreadable.total()} of {rows} rows cannot be read at {self.part} px; {count}: {first}"
        hint = f"more than data.max_quarantined_share, {share:g}: ingest them again"
        return Fault(where=self._config.data.shards, message=message, hint=hint)

    def finish(self, encoder: Encoder) -> dict[str, Any]:
        """Write the manifest. Returns the part's report."""
        if self.part != TEXT and not self.storage.exists(EMPTY):
            write_empty(self.storage, encoder.encode_text([""]))
        shards = tuple(self.done[number].shard for number in range(len(self._source.shards)))
        manifest = Manifest(shards=shards, quarantined=dict(sorted(self._unreadable.items())), about=self._about)
        self.storage.write(MANIFEST, manifest.to_bytes())
        return {
            "folder": str(self.storage),
            "rows": manifest.rows,
            "bytes": sum(shard.bytes for shard in shards),
            "unreadable": self._unreadable.total(),
        }
