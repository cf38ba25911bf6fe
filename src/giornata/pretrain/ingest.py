"""Convert a source of captioned pictures to normalized shards: `python -m giornata.pretrain.ingest SOURCE OUT`.

Every row is examined first, then the kept rows are written, stretch by stretch, and the manifest last. Shards are a
function of the source's content and the options: they do not depend on the number of workers, or of restarts.

Work of an unfinished ingest lies beside the shards, and the same command continues it:

    unfinished/examined-<digest>/part-00000.parquet    the examined rows of a part
    unfinished/written-<digest>/stretch-00000.json     the shards of a whole stretch

Digests are of the source and of the options that matter. After a refusal for too many bad rows, a larger share may be
allowed without another examination.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.decision import MEMORY_BYTES, QUARANTINE_FOLDER, Decision, write_quarantine
from giornata.pretrain.data.fence import check as check_owner
from giornata.pretrain.data.fence import holding
from giornata.pretrain.data.ingest_tasks import Stretch, examine_parts, examined_dataset, write_stretch
from giornata.pretrain.data.manifest import MANIFEST, Manifest, Shard
from giornata.pretrain.data.sources import Source, find, stretches_of
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.ray_train.cluster import connected
from giornata.pretrain.reported import program, reported, tell
from giornata.protocol.pretraining import Ingest
from giornata.protocol.pretraining_checks import parse_ingest

UNFINISHED = "unfinished"
EXAMINATION = 3
"""The version of the examination. It is raised when a row may be judged in another way than before."""
# Options that do not change the examination of a row
_NOT_EXAMINED = {"rows_per_shard", "shuffle_bytes", "max_captions", "max_quarantined_share", "dedupe_hash_distance"}
Progress = Callable[[str, int, int | None], None]
"""Called with the stage, the number of rows or shards, and their total if it is known."""


def ingest(
    address: str, out_address: str, options: Ingest, *, progress: Progress, memory_bytes: int = MEMORY_BYTES
) -> dict[str, Any]:
    """Write the shards and return a report. Needs a running Ray. The decision may take `memory_bytes`.

    Raises InvalidInput when the source cannot be read, when `out_address` holds something else or another command
    holds it, and, after all rows were counted and the quarantine was written, when too many rows were refused.
    """
    progress("looking", 0, None)
    source = find(address, options)
    out = Storage.at(out_address)
    about = {"ingest": _described(options), "source": _about(source)}
    _refuse_overlap(source, out)
    if (manifest := _earlier(out, about)) is not None:
        return _report(source, out, manifest, again=True)
    with holding(out, "ingest") as held:

        def fenced(what: str, done: int, total: int | None) -> None:
            check_owner(out, held.token)
            progress(what, done, total)

        unfinished = Unfinished.of(out, about)
        unfinished.clear()
        rows = 0
        for more in examine_parts(source, options, unfinished.examined):
            rows += more
            fenced("examined", rows, None)
        with tempfile.TemporaryDirectory(prefix="giornata-ingest-") as folder:
            examined = examined_dataset(source, unfinished.examined)
            decision = Decision(examined, Path(folder), memory_bytes=memory_bytes)
            _refuse_too_many(decision, options, out)
            shards = _write(source, options, decision, unfinished, fenced)
        manifest = Manifest(shards=shards, quarantined=decision.counts(), about=about)
        fenced("written", len(shards), len(shards))
        out.write(MANIFEST, manifest.to_bytes())
        unfinished.remove()
    return _report(source, out, manifest, again=False)


def _described(options: Ingest) -> dict[str, Any]:
    """The options as a manifest tells them, with a former one: a manifest of before is of the same options."""
    told: dict[str, Any] = json.loads(json.dumps({**asdict(options), "dedupe_hash_distance": None}))
    return told


def _about(source: Source) -> dict[str, Any]:
    return {"kind": source.kind.value, "files": len(source.files), "bytes": source.bytes, "digest": source.digest}


def _report(source: Source, out: Storage, manifest: Manifest, *, again: bool) -> dict[str, Any]:
    return {
        "source": str(source.storage),
        **_about(source),
        "out": str(out),
        "rows": manifest.rows + sum(manifest.quarantined.values()),
        "kept": manifest.rows,
        "quarantined": manifest.quarantined,
        "shards": len(manifest.shards),
        "shard_bytes": sum(shard.bytes for shard in manifest.shards),
        "manifest_digest": manifest.digest,
        "was_there": again,
    }


# ---- what is done ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The work for one source with one set of options. `examined` and `written` are folders below `out`."""

    out: Storage
    examined: Storage
    written: Storage

    @classmethod
    def of(cls, out: Storage, about: dict[str, Any], *, examination: int = EXAMINATION) -> "Unfinished":
        options = about["ingest"]
        asked = {name: each for name, each in options.items() if name not in _NOT_EXAMINED}
        found = {"source": about["source"], "ingest": asked, "version": examination}
        below, wrote = out / UNFINISHED, {**about, "version": examination}
        return cls(
            out=out, examined=below / f"examined-{_digest(found)}", written=below / f"written-{_digest(wrote)}"
        )

    def clear(self) -> None:
        """Remove the work of other ingests, and shards of no whole stretch."""
        ours = {each.below for each in (self.examined, self.written)}
        for folder in {name.split("/")[1] for name in self.out.names(UNFINISHED)}:
            if (self.out / UNFINISHED / folder).below not in ours:
                self.out.remove_all(f"{UNFINISHED}/{folder}")
        whole = {shard.name for name in self.written.names() for shard in self._noted(name) or ()}
        for name in self.out.names():
            if name.startswith("shard-") and name.endswith(".parquet") and name not in whole:
                self.out.remove(name)
        self.out.remove_all(QUARANTINE_FOLDER)

    def shards_of(self, stretch: int) -> list[Shard] | None:
        """The shards of a stretch, or None when it is not whole."""
        return self._noted(_note_name(stretch))

    def note(self, stretch: int, shards: Sequence[Shard]) -> None:
        self.written.write(_note_name(stretch), json.dumps([asdict(shard) for shard in shards]).encode())

    def remove(self) -> None:
        """Remove all of it, after the manifest was written."""
        self.out.remove_all(UNFINISHED)

    def _noted(self, name: str) -> list[Shard] | None:
        try:
            shards = [Shard(**each) for each in json.loads(self.written.read(name))]
            whole = all(self.out.size_bytes(shard.name) == shard.bytes for shard in shards)
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return shards if whole else None


def _note_name(stretch: int) -> str:
    return f"stretch-{stretch:05}.json"


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


# ---- before ----


def _refuse_overlap(source: Source, out: Storage) -> None:
    theirs, ours = f"{source.storage.path()}/", f"{out.path()}/"
    if source.storage.filesystem == out.filesystem and (theirs.startswith(ours) or ours.startswith(theirs)):
        hint = "neither may lie in the other"
        raise InvalidInput([Fault(where="out", message=f"{out} and the source are one folder", hint=hint)])


def _earlier(out: Storage, about: dict[str, Any]) -> Manifest | None:
    """The manifest of an earlier run of this ingest. Raises InvalidInput when there is one of another ingest."""
    if not out.exists(MANIFEST):
        return None
    manifest = Manifest.from_bytes(out.read(MANIFEST), where=f"{out}/{MANIFEST}")
    faults = []
    if manifest.about.get("source") != about["source"]:
        faults.append(Fault(where="out", message=f"{out} holds shards of another source", hint="name another folder"))
    # An option that is newer than the manifest had its default then
    there, asked = {**asdict(Ingest()), **manifest.about.get("ingest", {})}, about["ingest"]
    for name in sorted(name for name in {*there, *asked} if there.get(name) != asked.get(name)):
        message = f"{out} was made with {name} = {there.get(name)}, not {asked.get(name)}"
        faults.append(Fault(where="out", message=message, hint="name another folder"))
    if faults:
        raise InvalidInput(faults)
    return manifest


# ---- the passes ----


def _refuse_too_many(decision: Decision, options: Ingest, out: Storage) -> None:
    """Write the quarantine. Raises InvalidInput when too few rows are kept."""
    write_quarantine(out, decision)
    counts = decision.counts()
    refused = sum(counts.values())
    if decision.rows > refused <= options.max_quarantined_share * decision.rows:
        return
    message = f"{refused} of {decision.rows} rows were refused, {refused / max(1, decision.rows):.2%}"
    if refused == decision.rows:
        message = f"none of its {decision.rows} rows can be kept"
    found = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items(), key=lambda each: -each[1]))
    share, folder = options.max_quarantined_share, f"{out}/{QUARANTINE_FOLDER}"
    hint = f"ingest.max_quarantined_share is {share:g}; every row: {folder}"
    raise InvalidInput([Fault(where="source", message=f"{message}: {found}", hint=hint)])


def _write(
    source: Source, options: Ingest, decision: Decision, unfinished: Unfinished, progress: Progress
) -> tuple[Shard, ...]:
    shards = list[Shard]()
    for number, pieces in enumerate(stretches_of(source.pieces, options.shuffle_bytes)):
        whole = unfinished.shards_of(number)
        if whole is None:
            keep = decision.keep(pieces, options.rows_per_shard)
            stretch = Stretch(pieces=pieces, keep=keep, first_shard=len(shards))
            whole = _stretch(source, options, stretch, unfinished.out, progress)
            unfinished.note(number, whole)
        shards += whole
    return tuple(shards)


def _stretch(source: Source, options: Ingest, stretch: Stretch, out: Storage, progress: Progress) -> list[Shard]:
    first, rows, shards = stretch.first_shard, stretch.keep.rows, list[Shard]()
    total = first + len(stretch.keep.first_keys)
    progress("written", first, total)
    for shard in write_stretch(source, options, stretch, out) if rows else ():
        shards.append(shard)
        progress("written", first + len(shards), total)
    shards.sort(key=lambda shard: shard.name)
    expected = [min(options.rows_per_shard, rows - place) for place in range(0, rows, options.rows_per_shard)]
    if [shard.rows for shard in shards] != expected:
        raise InvalidInput([Fault(where="source", message="changed while it was read", hint="run it again")])
    return shards


# ---- the program ----


def main(source: str, out: str, options: str = "{}", address: str | None = None, report: Path | None = None) -> int:
    """`options`: a JSON object of ingest options. `address`: of a Ray cluster, None for a Ray of its own."""
    # The decision may take a quarter of the machine's memory: the more, the less has to wait on the disk
    memory_bytes = max(MEMORY_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)

    def work() -> dict[str, Any]:
        parsed = parse_ingest(json.loads(options))
        with connected(address, least_cpus=1):
            return ingest(source, out, parsed, progress=_say, memory_bytes=memory_bytes)

    return reported(report, work)


def _say(what: str, done: int, total: int | None) -> None:
    tell({"what": what, "done": done, "total": total})


if __name__ == "__main__":
    program(main)
