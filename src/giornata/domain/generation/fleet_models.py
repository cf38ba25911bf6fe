"""Which live nodes hold which models: what a server knows of its fleet between two looks at the store.

Nodes name the bases in their GPU memory by base key, and the files in host memory and on disk by sha256. A base is in
a tier when all of its files are. A base without files is loaded by the engine from the hub, by name, and counts as
being on the disk of every node; so does every base for a node that does not report its files.
"""

import threading
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace

from giornata.domain.generation.model_routing import HeldBases, Holders

TRIED_AGAIN_MS = 600_000
"""A node that did not manage to fetch a base ahead counts for so long as if it held the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFiles:
    """A base model: its name for messages, and the sha256 of its files; none for a model of the hub."""

    name: str
    sha256s: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeModels:
    """The models of one node: base keys in `gpu` and `fetching`, sha256s of files in `host` and `disk`.

    `version` is that of the node's latest report; None for a node whose files are not known. `seen_at_ms` is when the
    node said what its GPU holds. `owner` is the only project that the node serves; None for one that serves all.
    `vram_bytes` None: its GPU memory is not known, and counts as enough for everything.
    """

    seen_at_ms: int
    owner: str | None = None
    vram_bytes: int | None = None
    gpu: frozenset[str] = frozenset()
    host: frozenset[str] = frozenset()
    disk: frozenset[str] = frozenset()
    fetching: str | None = None
    version: int | None = None

    def is_smaller(self, min_vram_bytes: int) -> bool:
        """Return True when the node is known to have less GPU memory."""
        return self.vram_bytes is not None and self.vram_bytes < min_vram_bytes


class FleetModels:
    """The models of all live nodes, with an index by model. May be used from any thread.

    Nothing here is the truth. What is out of date costs the load of a model.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeModels] = {}
        self._on_gpu: dict[str, set[str]] = defaultdict(set)
        self._in_memory: dict[str, set[str]] = defaultdict(set)
        self._on_disk: dict[str, set[str]] = defaultdict(set)
        self._fetching: dict[str, set[str]] = defaultdict(set)
        self._unknown: set[str] = set()  # nodes that do not report their files
        self._owned: dict[str, str] = {}  # the project that owns a node, where one does
        self._hinted: dict[tuple[str, str], int] = {}  # node and base, and when
        self._arrives_at_ms: dict[str, int] = {}  # by node, for what it fetches
        self._bases: dict[str, BaseFiles] = {}
        self.read_at_ms: int | None = None

    # ---- bases

    def base(self, base_key: str) -> BaseFiles | None:
        """Return the files of a base; None when this process does not know them yet. They never change."""
        return self._bases.get(base_key)

    def remember_bases(self, bases: Mapping[str, BaseFiles], *, but_at_most: int) -> None:
        """Remember the files of bases."""
        with self._lock:
            if len(self._bases) + len(bases) > but_at_most:
                self._bases.clear()
            self._bases.update(bases)

    # ---- nodes

    def of(self, node_id: str) -> NodeModels | None:
        """Return what is known of the node."""
        return self._nodes.get(node_id)

    def versions(self) -> Mapping[str, int | None]:
        """Return the version of each known node's latest report."""
        with self._lock:
            return {node_id: node.version for node_id, node in self._nodes.items()}

    def put(self, node_id: str, models: NodeModels) -> None:
        """Note what the node holds, in place of what was known."""
        with self._lock:
            self._put(node_id, models)

    def keep_only(self, node_ids: Collection[str], *, at_ms: int) -> None:
        """Forget all other nodes, and hints that are long past."""
        with self._lock:
            for node_id in self._nodes.keys() - set(node_ids):
                self._remove(node_id)
            self._hinted = {key: at for key, at in self._hinted.items() if at_ms - at < TRIED_AGAIN_MS}

    def note_leased(self, node_id: str, base_key: str, *, at_ms: int) -> None:
        """Note that the node is about to draw with the base, which takes the place of all others on its GPU."""
        with self._lock:
            known = self._nodes.get(node_id, NodeModels(seen_at_ms=at_ms))
            self._put(node_id, replace(known, gpu=frozenset({base_key}), seen_at_ms=at_ms))

    def note_hinted(self, node_id: str, base_key: str, *, at_ms: int) -> None:
        """Note that the node was told to fetch the base."""
        with self._lock:
            known = self._nodes.get(node_id, NodeModels(seen_at_ms=at_ms))
            self._hinted[node_id, base_key] = at_ms
            self._put(node_id, replace(known, fetching=base_key))

    def note_given_up(self, node_id: str) -> None:
        """Note that the node does not fetch what it was told to fetch."""
        with self._lock:
            if node_id in self._nodes:
                self._put(node_id, replace(self._nodes[node_id], fetching=None))

    def note_arrival(self, node_id: str, at_ms: int | None) -> None:
        """Note when the node expects to have what it fetches; None: it cannot tell."""
        with self._lock:
            if at_ms is None:
                self._arrives_at_ms.pop(node_id, None)
            else:
                self._arrives_at_ms[node_id] = at_ms

    def arrives_at_ms(self, sha256: str, *, project_id: str) -> int | None:
        """Return when the first live node that serves the project expects to have the file.

        None when no node that fetches it could tell this process.
        """
        with self._lock:
            coming = self._fetched_by(sha256)
            told = [
                self._arrives_at_ms[node_id]
                for node_id in coming & self._arrives_at_ms.keys()
                if self._owned.get(node_id, project_id) == project_id
            ]
            return min(told, default=None)

    # ---- what routing asks

    def held(self, node_id: str) -> HeldBases:
        """Return the bases that the node holds.

        A base that the node was told to fetch, and neither has nor fetches, counts as being on its disk: a lease
        fetches the base then, and tells why that fails.
        """
        node = self._nodes.get(node_id)
        if node is None or node.version is None:
            gpu = () if node is None else node.gpu
            return HeldBases(gpu=gpu, disk=_EveryBase())
        tried = {base for (each, base) in list(self._hinted) if each == node_id and base != node.fetching}
        return HeldBases(
            gpu=node.gpu,
            host=_BasesOfFiles(self._bases, node.host),
            disk=_BasesOfFiles(self._bases, node.disk, also=tried, without_files=True),
            fetching=node.fetching,
        )

    def holders(self, base_key: str, *, project_id: str, min_vram_bytes: int = 0) -> Holders:
        """Return the number of live nodes that hold the base, by their fastest tier, and of those that fetch it.

        Only nodes count that serve the project and have enough GPU memory.
        """
        files = self._bases.get(base_key)
        with self._lock:
            strangers = {node_id for node_id, owner in self._owned.items() if owner != project_id}
            if min_vram_bytes:
                strangers |= {node_id for node_id, node in self._nodes.items() if node.is_smaller(min_vram_bytes)}
            gpu = self._on_gpu.get(base_key, set()) - strangers
            host = self._with_all(self._in_memory, files) - gpu - strangers
            if files is None or not files.sha256s:
                disk = self._nodes.keys() - gpu - strangers
            else:
                disk = (self._with_all(self._on_disk, files) | self._unknown) - gpu - host - strangers
            fetching = self._fetching.get(base_key, set()) - gpu - host - disk - strangers
            return Holders(gpu=len(gpu), host=len(host), disk=len(disk), fetching=len(fetching))

    def holders_beside(
        self,
        sha256: str,
        base_key: str,
        *,
        project_id: str,
        fetching: Collection[str] = (),
        fetched: Collection[str] = (),
    ) -> Holders:
        """Return the number of live nodes that have a file on disk and hold the base as well, and of those that fetch
        the file.

        Only nodes count that serve the project. `fetching` and `fetched` are nodes that were told to fetch the file,
        of which the latter have it by now.
        """
        files = self._bases.get(base_key)
        with self._lock:
            strangers = {node_id for node_id, owner in self._owned.items() if owner != project_id}
            live = self._nodes.keys() - strangers
            if files is not None and files.sha256s:
                live &= self._on_gpu.get(base_key, set()) | self._with_all(self._on_disk, files)
            disk = live & (self._on_disk.get(sha256, set()) | set(fetched))
            return Holders(disk=len(disk), fetching=len((live & set(fetching)) - disk))

    def coverage(self, sha256: str, *, project_id: str) -> Holders:
        """Return the number of live nodes that hold a file, alone or in a base, and of those that fetch it.

        Nodes that do not report their files count only for what is in their GPU memory.
        """
        with self._lock:
            strangers = {node_id for node_id, owner in self._owned.items() if owner != project_id}
            keys = [key for key, files in self._bases.items() if sha256 in files.sha256s]
            gpu = set[str]().union(*(self._on_gpu.get(key, set()) for key in keys)) - strangers
            host = self._in_memory.get(sha256, set()) - gpu - strangers
            disk = self._on_disk.get(sha256, set()) - gpu - host - strangers
            fetching = self._fetched_by(sha256) - gpu - host - disk - strangers
            return Holders(gpu=len(gpu), host=len(host), disk=len(disk), fetching=len(fetching))

    def serving(self, project_id: str) -> int:
        """Return the number of live nodes that serve the project."""
        with self._lock:
            return sum(self._owned.get(node_id, project_id) == project_id for node_id in self._nodes)

    def some_do_not_report(self, project_id: str) -> bool:
        """Return True when the files of a live node that serves the project are not known."""
        with self._lock:
            return any(self._owned.get(node_id, project_id) == project_id for node_id in self._unknown)

    # ---- inside, with the lock held

    def _fetched_by(self, sha256: str) -> set[str]:
        keys = [key for key, files in self._bases.items() if sha256 in files.sha256s]
        return set[str]().union(*(self._fetching.get(key, set()) for key in keys))

    @staticmethod
    def _with_all(index: Mapping[str, set[str]], files: BaseFiles | None) -> set[str]:
        if files is None or not files.sha256s:
            return set()
        return set.intersection(*(index.get(sha256, set()) for sha256 in files.sha256s))

    def _put(self, node_id: str, models: NodeModels) -> None:
        before = self._nodes.get(node_id)
        if before is not None and replace(before, seen_at_ms=0) == replace(models, seen_at_ms=0):
            self._nodes[node_id] = models
            return
        self._remove(node_id)
        self._nodes[node_id] = models
        for index, name in self._entries(models):
            index[name].add(node_id)
        if models.version is None:
            self._unknown.add(node_id)
        if models.owner is not None:
            self._owned[node_id] = models.owner

    def _remove(self, node_id: str) -> None:
        models = self._nodes.pop(node_id, None)
        if models is None:
            return
        self._unknown.discard(node_id)
        self._owned.pop(node_id, None)
        self._arrives_at_ms.pop(node_id, None)
        for index, name in self._entries(models):
            index[name].discard(node_id)
            if not index[name]:
                del index[name]

    def _entries(self, models: NodeModels) -> Iterator[tuple[dict[str, set[str]], str]]:
        yield from ((self._on_gpu, name) for name in models.gpu)
        yield from ((self._in_memory, name) for name in models.host)
        yield from ((self._on_disk, name) for name in models.disk)
        if models.fetching is not None:
            yield self._fetching, models.fetching


class _EveryBase(Container[str]):
    """The bases of a node of which it is not known what it holds."""

    def __contains__(self, base_key: object) -> bool:
        return True


class _BasesOfFiles(Container[str]):
    """The bases whose files are all among these, and `also` some; with or without those that have no files."""

    def __init__(
        self,
        bases: Mapping[str, BaseFiles],
        sha256s: frozenset[str],
        *,
        also: Collection[str] = (),
        without_files: bool = False,
    ) -> None:
        self._bases, self._sha256s, self._also, self._without_files = bases, sha256s, also, without_files

    def __contains__(self, base_key: object) -> bool:
        files = self._bases.get(str(base_key))
        if files is None or not files.sha256s:
            return self._without_files
        return base_key in self._also or self._sha256s.issuperset(files.sha256s)
