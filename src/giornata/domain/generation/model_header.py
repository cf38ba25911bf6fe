"""The header of a safetensors file: names, shapes and metadata, without a tensor. No other format is read.

A safetensors file begins with the length of its header (eight bytes, little-endian), and the header is JSON. Formats
that are unpickled can run code when they are loaded, so they are refused by name and by content.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from giornata.domain.errors import Fault, InvalidInput

MAX_HEADER_BYTES = 32 * 2**20
LENGTH_BYTES = 8
SUFFIX = ".safetensors"
UNPICKLED_SUFFIXES = (".ckpt", ".pt", ".pth", ".bin", ".pkl", ".pickle")
CONVERT = "convert it to .safetensors; loading the other format can run code"
OTHER_CONTENT = (
    (b"PK\x03\x04", "is a zip archive, as PyTorch's pickled files are", CONVERT),
    (b"\x80", "is pickled", CONVERT),
    (b"GGUF", "is a GGUF file", "give the .safetensors file of the model"),
    (
        b"version https://git-lfs",
        "is a pointer of Git LFS, not the weights",
        "fetch what it stands for: git lfs pull",
    ),
    (b"<", "is a web page", "the address was that of a page, or asks for a login: name the file itself"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHeader:
    """The tensors' shapes by name, the metadata, and the size that the whole file has."""

    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, str]
    file_bytes: int


def name_faults(name: str, *, where: str) -> list[Fault]:
    """Return a fault for the name of a file in a format that is unpickled."""
    path = name.partition("?")[0].lower()
    wrong = next((suffix for suffix in UNPICKLED_SUFFIXES if path.endswith(suffix)), None)
    if wrong is None:
        return []
    message = f"{name} is a {wrong} file, and only {SUFFIX} files are taken"
    return [Fault(where=where, message=message, hint=CONVERT)]


def header_end(beginning: bytes, *, where: str) -> int:
    """Return where the tensors begin. `beginning` is the first bytes, eight at least, of the file.

    Raises InvalidInput for another format.
    """
    text = beginning.lstrip().lower()
    for mark, message, hint in OTHER_CONTENT:
        # The length of a real header may begin with the byte 0x80; its second byte is no protocol of pickle then.
        if text.startswith(mark.lower()) and not _is_header_length(beginning):
            raise InvalidInput([Fault(where=where, message=message, hint=hint)])
    if not _is_header_length(beginning):
        raise InvalidInput([Fault(where=where, message=f"is not a {SUFFIX} file, or is cut short", hint=CONVERT)])
    return LENGTH_BYTES + int.from_bytes(beginning[:LENGTH_BYTES], "little")


def read_header(beginning: bytes, *, where: str) -> ModelHeader:
    """Read the header from the first bytes of a file, as many as `header_end` says. Raises InvalidInput."""
    end = header_end(beginning, where=where)
    try:
        header: dict[str, Any] = json.loads(beginning[LENGTH_BYTES:end])
        metadata = {str(key): str(value) for key, value in (header.pop("__metadata__", None) or {}).items()}
        shapes = {name: tuple(int(side) for side in entry["shape"]) for name, entry in header.items()}
        data_bytes = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        message = "has an unreadable safetensors header"
        raise InvalidInput([Fault(where=where, message=message, hint="fetch the file again")]) from error
    return ModelHeader(shapes=shapes, metadata=metadata, file_bytes=end + data_bytes)


def size_faults(header: ModelHeader, size_bytes: int, *, where: str) -> list[Fault]:
    """Return a fault when the file is shorter or longer than its header promises."""
    if header.file_bytes == size_bytes:
        return []
    message = f"has {size_bytes} bytes, and its header promises {header.file_bytes}"
    return [Fault(where=where, message=message, hint="fetch the file again")]


def _is_header_length(beginning: bytes) -> bool:
    """Return True when the file begins as safetensors files do: a plausible length, and an object behind it."""
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little")
    return 2 <= length <= MAX_HEADER_BYTES and beginning[LENGTH_BYTES : LENGTH_BYTES + 1] in {b"", b"{"}
