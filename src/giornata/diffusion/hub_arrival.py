"""Whether a model still arrives from the hub: its client says nothing while gigabytes come in."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOK_EVERY_S = 5.0
BLOCK_BYTES = 512  # POSIX: st_blocks counts these, whatever the file system's own are


class Arrival:
    """What has arrived in some directories, by the room that their files really take: some are made full size at
    once."""

    def __init__(self, *directories: Path) -> None:
        self._directories = directories
        self._bytes = self._count()

    def moved(self) -> bool:
        """Whether anything has come, or gone, since this was last asked."""
        before, self._bytes = self._bytes, self._count()
        return before != self._bytes

    def _count(self) -> int:
        # os.walk passes over folders that go while it looks, as the client's temporary ones do; Path.rglob raises.
        walks = (os.walk(directory) for directory in self._directories)
        return sum(_bytes_at(Path(folder, name)) for walk in walks for folder, _, names in walk for name in names)


@contextmanager
def arriving(cache: Path, told: Callable[[], None], *, every_s: float = LOOK_EVERY_S) -> Iterator[None]:
    """Within, `told` is called from a thread whenever the hub's cache has changed in the last seconds: in it, or in
    the chunks beside it that newer clients put files together from."""
    arrival, over = Arrival(cache, cache.parent / "xet"), threading.Event()

    def look() -> None:
        with suppress(OSError):  # the agent is gone, and the engine goes too
            while not over.wait(every_s):
                if arrival.moved():
                    told()

    watching = threading.Thread(target=look, name="hub-arrival", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _bytes_at(path: Path) -> int:
    try:
        return path.lstat().st_blocks * BLOCK_BYTES
    except OSError:
        return 0  # renamed or removed meanwhile
