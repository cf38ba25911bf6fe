"""Encoded shards: their folders, their description, and the check that they fit a run.

`<latents>/<resolution>/shard-XXXXX.parquet` has the rows of the source's shard of the same number, in the same order:
columns.STORED_LATENTS and `latent_shape`. `<latents>/text/shard-XXXXX.parquet` has their text, once for all
resolutions. Beside each lies a note of its size and hash. `about.json` describes the shards of a folder before the
first is written; `manifest.json` describes and lists them after the last. `empty.safetensors` is the embedding of the
empty caption.

Older versions stored the text within the shards of each resolution. Such folders can be read, and not added to.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.manifest import MANIFEST, Manifest
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoder import Encoder
from giornata.pretrain.encoding.encoder_outputs import Text
from giornata.pretrain.encoding.transforms import CaptionChoice, several_captions
from giornata.protocol.pretraining import Mode, PretrainConfig

ABOUT, EMPTY = "about.json", "empty.safetensors"
TEXT = "text"
"""The folder of the text, beside those of the resolutions."""
PROMPT, POOLED = "prompt_LD", "pooled_P"
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


def stored_choice(config: PretrainConfig, source: Manifest) -> CaptionChoice | None:
    """The choice of the captions of the stored text. None without a choice, or without stored text."""
    if not stores_text(config) or not several_captions(source):
        return None
    return CaptionChoice(seed=config.seed, weights=config.data.caption_weights)


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
        choice = stored_choice(config, source)
        return {**wanted, **({} if choice is None else {"caption_choice": json.loads(json.dumps(asdict(choice)))})}
    return {
        **wanted,
        "resolution": int(part),
        "enable_bucket": data.enable_bucket,
        "bucket_reso_steps": data.bucket_reso_steps if data.enable_bucket else None,
        "center_crop": data.center_crop,
        "random_flip": data.random_flip,
        "seed": config.seed if drawn or model.random_encoders else None,
    }


def about(config: PretrainConfig, part: int | str, source: Manifest, encoder: Encoder) -> dict[str, Any]:
    """The description of a part, with the encoder."""
    return {**wanted_about(config, part, source), "encoder": encoder.digest, "scaling": list(encoder.scaling)}


def encoded_manifest(config: PretrainConfig, resolution: int, source: Manifest) -> Manifest:
    """The manifest of latents for this run. Raises InvalidInput when there are none of this source and these options.

    In a mode that reads text, the text must be there too. The architecture is compared, and not the model's name:
    `encode` compares the weights.
    """
    if config.encode.mode is Mode.OFFLINE and not config.encode.store_text:
        hint = "say encode.store_text, or mode hybrid"
        raise InvalidInput([Fault(where="encode.store_text", message="mode offline reads text", hint=hint)])
    found = _manifest_as_wanted(config, resolution, source)
    if stores_text(config):
        if not has_text_inside(found.about):
            text = _manifest_as_wanted(config, TEXT, source)
            refuse_others(latents_storage(config, TEXT), text.about, {"encoder": found.about.get("encoder")})
        else:
            wanted = {"text": True, **wanted_about(config, TEXT, source)}
            wanted.pop("seed")  # that of the latents is another, and was compared
            refuse_others(latents_storage(config, resolution), found.about, wanted)
    return found


def has_text_inside(found: Mapping[str, Any]) -> bool:
    """Return True when an older version wrote the folder: its description has the entry `text`."""
    return "text" in found


def _manifest_as_wanted(config: PretrainConfig, part: int | str, source: Manifest) -> Manifest:
    storage = latents_storage(config, part)
    found = read_manifest(storage, hint="make it with `giornata pretrain encode`")
    refuse_others(storage, found.about, wanted_about(config, part, source))
    return found


def refuse_others(storage: Storage, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise InvalidInput with a fault for every wanted value that `found` lacks."""
    faults = [
        Fault(where=str(storage), message=f"{name} is {found.get(name)!r}, and {value!r} is wanted", hint=AGAIN)
        for name, value in wanted.items()
        if found.get(name) != value
    ]
    if faults:
        raise InvalidInput(faults)


def write_empty(storage: Storage, text: Text) -> None:
    """Write `text`, the embedding of the empty caption."""
    arrays = {PROMPT: text.prompt_NLD[0]} | ({} if text.pooled_NP is None else {POOLED: text.pooled_NP[0]})
    storage.write(EMPTY, save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def read_empty(storage: Storage) -> Text:
    """Read the embedding of the empty caption. Raises FileNotFoundError."""
    arrays = load(storage.read(EMPTY))
    pooled_P = arrays.get(POOLED)
    return Text(prompt_NLD=arrays[PROMPT][None], pooled_NP=None if pooled_P is None else pooled_P[None])
