"""Decodes finished pictures and writes their files in a thread, while the next rows are denoised."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from PIL import Image

from giornata.diffusion.files.picture_file import ENDINGS, picture_bytes
from giornata.protocol.generation.preprocess import LeasedParams

MOST_UNWRITTEN = 16
"""Finished pictures that wait for their files at most; their latents take memory."""

W = TypeVar("W")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(Generic[W]):
    """A file that is complete, or the error that prevented it. Without either the picture is blocked."""

    what: W
    path: Path | None
    error: Exception | None


class ResultWriter(Generic[W]):
    """Writes files one after the other in a thread of its own. `what` says whose a file is, and is given back.

    As a context manager it waits for the file that is being written, and leaves the others. `made_with` are versions
    that the files record.
    """

    def __init__(self, made_with: Mapping[str, str]) -> None:
        self._made_with = made_with
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pictures")
        self._under_way: deque[tuple[W, Path, Future[bool]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def is_full(self) -> bool:
        """Return True when no further picture should be given before one is written."""
        return len(self._under_way) >= MOST_UNWRITTEN

    def write(
        self,
        what: W,
        image: Callable[[], Image.Image | None],
        params: LeasedParams,
        stem: Path,
        *,
        made_with: Mapping[str, str],
    ) -> None:
        """Decode a picture by `image` and write it to `stem` with the ending of its format, soon. Of None, which is
        a blocked picture, nothing is written. The file records what this picture was `made_with`, besides what all
        are."""
        path = stem.with_name(stem.name + ENDINGS[params.image_format])
        recorded = {**self._made_with, **made_with}

        def make() -> bool:
            if (made := image()) is None:
                return False
            aside = path.with_name(f".{path.name}")  # no reader sees half of a file
            aside.write_bytes(picture_bytes(made, params, made_with=recorded))
            aside.rename(path)
            return True

        self._under_way.append((what, path, self._pool.submit(make)))

    def written(self, *, wait_s: float | None = None) -> Iterator[Written[W]]:
        """Yield what is done since the last call. With `wait_s`, wait so long for one."""
        if wait_s is not None and self._under_way:
            wait([future for _, _, future in self._under_way], timeout=wait_s, return_when=FIRST_COMPLETED)
        while self._under_way and self._under_way[0][2].done():
            what, path, future = self._under_way.popleft()
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            is_written = error is None and future.result()
            yield Written(what=what, path=path if is_written else None, error=error)
