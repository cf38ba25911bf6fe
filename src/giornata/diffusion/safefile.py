"""Safetensors files whose bytes are a function of their content.

The library writes tensors in a fixed order, but metadata in whatever order its hash map has: two writes of the
same content differ. So its header is written anew here, with sorted keys, padded to 8 bytes as the format asks.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save


def safetensors_bytes(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> bytes:
    """The file's bytes: u64 length of the header, the header as JSON, the tensors' data."""
    content = save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)})
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    header["__metadata__"] = dict(metadata)
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + header_bytes :]


def data_of(content: bytes) -> bytes:
    """The tensors' data alone, without the header."""
    return content[8 + int.from_bytes(content[:8], "little") :]


def write_durably(path: Path, content: bytes) -> None:
    """Write aside, sync, rename, sync the folder: under `path` there is the whole file or what was there before."""
    aside = path.with_name(f"{path.name}.part")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
