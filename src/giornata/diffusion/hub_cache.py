"""Keeps the hub's cache on this machine within a bound: what was used longest ago goes first.

Only repositories that a node brought here are counted and removed. Each has a mark beside the cache, whose time is
that of its last use; what was there before (somebody's own models in the same cache) has none and is never touched.
A mark is locked while the repository is read, so nobody removes what another engine is just loading. The cache is
read and changed by huggingface_hub's own tools.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from huggingface_hub import CachedRepoInfo, CacheNotFound, HFCacheInfo, scan_cache_dir
from huggingface_hub.constants import HF_HUB_CACHE

MARKS = ".giornata"


@dataclass(slots=True, kw_only=True)
class HubCache:
    """The cache in `directory`. `bound_bytes` None: no bound. Close it when what was fetched has been read."""

    directory: Path = Path(HF_HUB_CACHE)
    bound_bytes: int | None = None
    _held: dict[str, IO[bytes]] = field(default_factory=dict)

    def using(self, repository: str) -> None:
        """Say, before it is fetched, that a repository is about to be read: nobody removes it until `close`."""
        mark = self._mark(repository)
        if repository in self._held or (self._folder(repository).exists() and not mark.exists()):
            return
        mark.parent.mkdir(parents=True, exist_ok=True)
        file = mark.open("ab")
        fcntl.flock(file, fcntl.LOCK_SH)
        mark.touch()
        self._held[repository] = file

    def trim(self) -> list[str]:
        """Remove what was used longest ago until the rest is within the bound; the names of what went.

        What is in use stays, here or in another process, even if the bound is exceeded.
        """
        if self.bound_bytes is None:
            return []
        try:
            found = scan_cache_dir(self.directory)
        except CacheNotFound:
            return []
        ours = [repo for repo in found.repos if repo.repo_type == "model" and self._mark(repo.repo_id).exists()]
        ours.sort(key=lambda repo: self._mark(repo.repo_id).stat().st_mtime_ns)
        size_bytes, gone = sum(repo.size_on_disk for repo in ours), []
        for repo in ours:
            if size_bytes <= self.bound_bytes:
                break
            if self._remove(found, repo):
                size_bytes -= repo.size_on_disk
                gone.append(repo.repo_id)
        return gone

    def close(self) -> None:
        """What was in use may go."""
        while self._held:
            self._held.popitem()[1].close()

    def _remove(self, found: HFCacheInfo, repo: CachedRepoInfo) -> bool:
        if repo.repo_id in self._held:
            return False
        mark = self._mark(repo.repo_id)
        with _alone(mark) as mine:
            if mine:
                # Copies of a repository have the same commits: of this one alone they are to go.
                alone = replace(found, repos=frozenset({repo}))
                alone.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
                mark.unlink(missing_ok=True)
            return mine

    def _folder(self, repository: str) -> Path:
        return self.directory / f"models--{repository.replace('/', '--')}"

    def _mark(self, repository: str) -> Path:
        return self.directory / MARKS / self._folder(repository).name


@contextmanager
def _alone(mark: Path) -> Iterator[bool]:
    """Whether nobody else holds the mark; nobody can take it inside."""
    with mark.open("ab") as file:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
            return
        yield False
