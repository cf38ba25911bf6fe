"""The storage of shards, checkpoints and metrics: a folder or an s3:// address, through pyarrow's file systems.
Sources may also lie where fsspec reads.

An S3 address may name its server: `s3://bucket/path?endpoint_override=http://host:9000&region=eu-1`. Keys come from
the places of the AWS tools (environment, profile, instance role).

A name is a path below the address, with `/` between its parts. A file appears whole or not at all.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import fsspec
import pyarrow as pa
from pyarrow import fs

from giornata.domain.errors import Fault, InvalidInput

_TEMPORARY = ".writing-"
_CHUNK_BYTES = 16 << 20


def absolute(address: str) -> str:
    """The whole path of a folder of this process. An address with :// is returned as it is."""
    return address if "://" in address else str(Path(address).expanduser().absolute())


@dataclass(frozen=True, slots=True)
class Storage:
    """Files below one address. Other processes may receive a Storage: they open the address themselves.

    Failures raise OSError; a missing file raises FileNotFoundError.
    """

    address: str
    below: str = ""

    @classmethod
    def at(cls, address: str | Path) -> "Storage":
        """A folder (relative to this process, need not exist) or an s3:// address. Raises InvalidInput."""
        scheme, remote, _ = str(address).partition("://")
        if remote and scheme != "s3":
            hint = "a folder or s3://bucket/path"
            raise InvalidInput([Fault(where="address", message=f"cannot write to {scheme}://", hint=hint)])
        return cls.to_read(address)

    @classmethod
    def to_read(cls, address: str | Path) -> "Storage":
        """Open a storage as `at` does, or an address to read of any file system of fsspec (gs://, https://, hf://).

        Raises InvalidInput.
        """
        text = absolute(str(address))
        if "://" in text:
            _opened(text)
        return cls(text)

    def __str__(self) -> str:
        place = self.address.partition("?")[0]
        if "@" in place:  # no keys in what people read
            place = f"{place.partition('://')[0]}://{place.rpartition('@')[2]}"
        return f"{place.rstrip('/')}/{self.below}" if self.below else place

    def __truediv__(self, name: str) -> "Storage":
        return replace(self, below=self._joined(name))

    def beside(self, name: str) -> "Storage":
        """The folder `name` in the folder that this one lies in."""
        return replace(self, below=self.below.rpartition("/")[0]) / name

    @property
    def filesystem(self) -> fs.FileSystem:
        """pyarrow's file system, for libraries that take it together with `path`."""
        return _opened(self.address)[0]

    def path(self, name: str = "") -> str:
        """The path of a file within `filesystem`."""
        root = _opened(self.address)[1].rstrip("/")
        return "/".join(part for part in (root, self._joined(name)) if part)

    def exists(self, name: str) -> bool:
        return bool(self.filesystem.get_file_info(self.path(name)).type == fs.FileType.File)

    def size_bytes(self, name: str) -> int:
        info = self.filesystem.get_file_info(self.path(name))
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"there is no file {self / name}")
        return int(info.size)

    def names(self, under: str = "") -> list[str]:
        """The sorted names of all files below `under`, at any depth. The list may be empty."""
        return [name for name, _ in self.sizes(under)]

    def sizes(self, under: str = "") -> list[tuple[str, int]]:
        """(name, bytes) of all files below `under`, at any depth, sorted by name."""
        top = self.path()
        selector = fs.FileSelector(self.path(under), recursive=True, allow_not_found=True)
        found = [
            (info.path.removeprefix(top).lstrip("/"), self._size_bytes(info))
            for info in self.filesystem.get_file_info(selector)
            if info.type == fs.FileType.File and not info.base_name.startswith(_TEMPORARY)
        ]
        return sorted(found)

    def _size_bytes(self, info: fs.FileInfo) -> int:
        # A page of https that lists files does not say how large they are
        return int(info.size if info.size is not None else self.filesystem.get_file_info(info.path).size)

    def read(self, name: str) -> bytes:
        with self.open(name) as stream:
            return stream.read()

    @contextmanager
    def open(self, name: str) -> "Iterator[pa.NativeFile]":
        """Open a file to read at any offset."""
        with self.filesystem.open_input_file(self.path(name)) as stream:
            yield stream

    def write(self, name: str, content: bytes | memoryview) -> None:
        with self._whole(name) as stream:
            stream.write(content)

    def put(self, path: Path, name: str) -> None:
        """Copy a local file into the storage. On S3 a failed copy removes an older file of that name."""
        with path.open("rb") as source, self._whole(name) as target:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)

    def get(self, name: str, path: Path) -> None:
        """Copy a file to a local one, which appears whole as well."""
        with self.open(name) as source, _whole_file(path) as target:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        if self.exists(name):
            self.filesystem.delete_file(self.path(name))

    def remove_all(self, under: str) -> None:
        """Remove a folder with its files, if there is one."""
        if not under.strip("/"):
            raise ValueError("the whole storage is not removed: name a folder of it")
        if self._local:
            if Path(self.path(under)).is_dir():
                self.filesystem.delete_dir(self.path(under))
            return
        for name in self.names(under):
            self.remove(name)

    @property
    def _local(self) -> bool:
        return "://" not in self.address

    def _joined(self, name: str) -> str:
        parts = [*self.below.split("/"), *name.split("/")]
        if ".." in parts:
            raise ValueError(f"{name!r} leads out of {self}")
        return "/".join(part for part in parts if part)

    @contextmanager
    def _whole(self, name: str) -> "Iterator[BinaryIO | pa.NativeFile]":
        if self._local:
            with _whole_file(Path(self.path(name))) as file:
                yield file
            return
        # An S3 object exists when its upload is completed, and pyarrow completes it on close, even half of it.
        stream = self.filesystem.open_output_stream(self.path(name))
        try:
            yield stream
        except BaseException:
            with suppress(OSError):
                stream.close()
            self.remove(name)
            raise
        stream.close()


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write under another name, sync to the disk, then move to its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@lru_cache(maxsize=32)
def _opened(address: str) -> tuple[fs.FileSystem, str]:
    if "://" not in address:
        return fs.LocalFileSystem(), address
    try:
        filesystem, path = fs.FileSystem.from_uri(address) if address.startswith("s3://") else _by_fsspec(address)
    except (pa.ArrowInvalid, OSError) as error:
        place = address.partition("?")[0].rpartition("@")[2]
        raise InvalidInput([Fault(where="address", message=f"{place} cannot be opened: {error}")]) from None
    if not path:
        raise InvalidInput([Fault(where="address", message="names no bucket", hint="s3://bucket/path")])
    return filesystem, path


def _by_fsspec(address: str) -> tuple[fs.FileSystem, str]:
    scheme = address.partition("://")[0]
    try:
        filesystem, path = fsspec.url_to_fs(address)
    except ImportError as error:
        message = f"{scheme}:// needs a package that is not installed: {error}"
        hint = "pip install -c constraints.txt '.[gcs]'" if scheme in {"gs", "gcs"} else "install this package"
        raise InvalidInput([Fault(where="address", message=message, hint=hint)]) from None
    except ValueError:
        hint = "a folder, or an address such as s3://bucket/path, gs://bucket/path or https://host/path"
        raise InvalidInput([Fault(where="address", message=f"{scheme}:// is not known", hint=hint)]) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path
