"""Safetensors files whose bytes are a function of their content. Nothing is ever unpickled.

The library writes tensors in a fixed order, but several metadata keys in the order of its hash map: two writes of one
content differ. There are two ways around that, and each kind of file keeps the one that it began with:

    own files       checkpoints and cached encodings have one metadata key, METADATA_KEY: a header of canonical JSON
    LoRA files      other tools read these, with many keys: the header is written anew here, with sorted keys

Every file is written beside its name and renamed: under a name there is a whole file or none.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

METADATA_KEY = "giornata"


class UnreadableTensorFile(ValueError):
    """The file cannot be read, or it is not the file that its key promises."""


def canonical_json(value: Any) -> str:
    """Write JSON with one spelling per value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def json_sha256(value: Any) -> str:
    """Hash the canonical JSON of a value; 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


# ---- files of our own: tensors and one header


def write_tensor_file(
    path: Path,
    header: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    *,
    durable: bool = False,
    save: Callable[..., None] = save_file,
) -> None:
    """Write the tensors, copied to the CPU, under METADATA_KEY the header. `durable` syncs file and folder."""
    content = {name: tensor.detach().to(device="cpu").contiguous() for name, tensor in sorted(tensors.items())}
    aside = path.with_name(path.name + ".part")
    save(content, aside, metadata={METADATA_KEY: canonical_json(header)})
    _rename(aside, path, durable=durable)


def read_file_header(path: Path) -> dict[str, Any]:
    """Read the header alone. Raises UnreadableTensorFile."""
    try:
        with safe_open(path, framework="pt") as opened:
            return _header(opened.metadata())
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnreadableTensorFile(f"{type(error).__name__}: {error}") from error


def read_tensor_file(path: Path, key: str | None = None) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read header and tensors, on the CPU. A `key` must be the header's own. Raises UnreadableTensorFile."""
    try:
        metadata, tensors = read_tensors(path)
        header = _header(metadata)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnreadableTensorFile(f"cannot be read ({type(error).__name__}: {error})") from error
    if key is not None and header.get("key") != key:
        raise UnreadableTensorFile(NOT_AS_WRITTEN)
    return header, tensors


NOT_AS_WRITTEN = "its bytes are not those that were written under this key"


def _header(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    header = json.loads((metadata or {})[METADATA_KEY])
    if not isinstance(header, dict):
        raise TypeError("the header is no object")
    return header


# ---- any safetensors file


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Read metadata and tensors of any safetensors file. Raises OSError or SafetensorError."""
    with safe_open(path, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (not a mapping)
        return dict(opened.metadata() or {}), tensors


def safetensors_bytes(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> bytes:
    """Make a file's bytes: u64 length of the header, the header as JSON, padded to 8 bytes, the tensors' data."""
    content = save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)})
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    header["__metadata__"] = dict(metadata)
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + header_bytes :]


def data_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash the data of a file with these tensors, without the header: the hash that LoRA files name."""
    content = safetensors_bytes(tensors, {})
    return hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hash the bytes of a file; 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_durably(path: Path, content: bytes) -> None:
    """Write aside, sync, rename, sync the folder: under `path` there is the whole file or what was there before."""
    aside = path.with_name(f"{path.name}.part")
    aside.write_bytes(content)
    _rename(aside, path, durable=True)


def _rename(aside: Path, path: Path, *, durable: bool) -> None:
    if durable:
        _sync(aside)
    aside.replace(path)
    if durable:
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
