"""The probes that measure a machine; a test passes others."""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from giornata.agent.machine.nvidia_smi import RunCommand, run_command
from giornata.agent.work_dir import CACHE_DIRECTORY, MODEL_DIRECTORY


def free_bytes(directory: Path) -> int:
    """Return the bytes that this user may still write to the file system of a directory."""
    return shutil.disk_usage(directory).free


def total_bytes(directory: Path) -> int:
    """Return the size of the file system of a directory."""
    return shutil.disk_usage(directory).total


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProbes:
    """`visible` is CUDA_VISIBLE_DEVICES; `caches` are directories whose content this node keeps within bounds itself:
    what lies there is room that it can have."""

    run: RunCommand = run_command
    free_bytes: Callable[[Path], int] = free_bytes
    total_bytes: Callable[[Path], int] = total_bytes
    wall_clock_s: Callable[[], float] = time.time
    visible: str | None = None
    caches: tuple[Path, ...] = field(default=())

    def usable_bytes(self, directory: Path, *, wanted: int | None) -> int:
        """Return the free bytes in the directory, where the node's own caches on the same disk count as free.

        The caches are measured only when the rest is less than `wanted`.
        """
        free = self.free_bytes(directory)
        if wanted is None or free >= wanted:
            return free
        device = directory.stat().st_dev
        return free + sum(_bytes_on(device, cache) for cache in self.caches)


def caches_of(environment: Mapping[str, str], work_dir: Path) -> tuple[Path, ...]:
    """Return the directories of the node's inputs, of its model files, and of the hub's models."""
    home = Path(environment.get("HF_HOME") or Path(environment.get("HOME", "~"), ".cache", "huggingface"))
    return (
        work_dir / CACHE_DIRECTORY,
        work_dir / MODEL_DIRECTORY,
        Path(environment.get("HF_HUB_CACHE") or home / "hub").expanduser(),
    )


def _bytes_on(device: int, directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        total += sum(_sizes(device, (Path(folder, name) for name in names)))
    return total


def _sizes(device: int, paths: Iterable[Path]) -> Iterable[int]:
    for path in paths:
        try:
            found = path.lstat()
        except OSError:
            continue
        if found.st_dev == device:
            yield found.st_size
