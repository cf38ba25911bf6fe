"""The offline encoding: `python -m giornata.pretrain.encode CONFIG`.

Every shard of the source is read once: for all resolutions of the phases together, and for the text. The command may
be killed at any moment: the next one keeps whole shards, and the result is the same to the byte. With more than one
encoder, or with an address, actors of Ray encode the shards; otherwise this process does.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.pretrain.data.fence import check as check_owner
from giornata.pretrain.data.fence import holding
from giornata.pretrain.data.manifest import MANIFEST, Manifest, json_bytes
from giornata.pretrain.encoding.encode_shards import (
    EncodedPart,
    EncodeShards,
    EncodingTask,
    ShardEncoder,
    done_before,
    threads_of_one,
)
from giornata.pretrain.encoding.encoded import (
    ABOUT,
    AGAIN,
    EMPTY,
    TEXT,
    about,
    has_text_inside,
    latents_storage,
    latents_top,
    refuse_others,
    source_manifest,
    stores_text,
    write_empty,
)
from giornata.pretrain.encoding.encoder import Encoder, device_of_an_encoder, encoder_dtype, open_encoder
from giornata.pretrain.recipes import read_config
from giornata.pretrain.reported import program, reported, tell
from giornata.pretrain.run_state.committed import rooted, run_storage
from giornata.pretrain.run_state.costs import CostRecord, TrainerStart
from giornata.protocol.pretraining import PretrainConfig

READERS = 16
"""Threads that read the notes of earlier commands: each note is a request to the storage."""
Progress = Callable[[Mapping[str, int]], None]
Encoding = Callable[[list[EncodingTask]], Iterable[tuple[EncodingTask, dict[str, EncodedPart]]]]


class PartFolder:
    """The folder of one part (a resolution, or TEXT): its description, its whole shards, its unreadable rows."""

    def __init__(self, config: PretrainConfig, part: str, source: Manifest, encoder: Encoder) -> None:
        """Claim the folder with its description. Raises InvalidInput when it holds something else."""
        self.part, self.storage = part, latents_storage(config, part)
        self._about = about(config, part, source, encoder)
        self._config, self._source = config, source
        self.done: dict[int, EncodedPart] = {}
        self._unreadable: Counter[str] = Counter()
        self._claim()

    def _claim(self) -> None:
        if self.storage.exists(ABOUT):
            found = json.loads(self.storage.read(ABOUT))
            if has_text_inside(found):
                message = (
                    "was written by an older version: runs read it once it has a manifest, and it stays as it is"
                )
                raise InvalidInput([Fault(where=str(self.storage), message=message, hint=AGAIN)])
            refuse_others(self.storage, found, self._about)
            return
        if others := self.storage.names():
            message = f"is not empty ({others[0]}) and does not say what it holds"
            hint = "name another folder: encode.latents"
            raise InvalidInput([Fault(where=str(self.storage), message=message, hint=hint)])
        self.storage.write(ABOUT, json_bytes(self._about))

    def look(self) -> None:
        """Find the shards that earlier commands encoded."""
        numbers = range(len(self._source.shards))
        with ThreadPoolExecutor(READERS) as pool:
            for number, each in enumerate(pool.map(partial(done_before, self.storage), numbers)):
                if each is not None:
                    self.add(number, each)

    def add(self, number: int, done: EncodedPart) -> None:
        """Add a whole shard. The cost does not grow with the number of shards."""
        self.done[number] = done
        self._unreadable.update(done.unreadable)

    def fault(self) -> Fault | None:
        """The fault of more unreadable rows than data.max_quarantined_share."""
        share, rows = self._config.data.max_quarantined_share, self._source.rows
        if self._unreadable.total() <= share * rows:
            return None
        first, count = self._unreadable.most_common(1)[0]
        message = f"{self._unreadable.total()} of {rows} rows cannot be read at {self.part} px; {count}: {first}"
        hint = f"more than data.max_quarantined_share, {share:g}: ingest them again"
        return Fault(where=self._config.data.shards, message=message, hint=hint)

    def finish(self, encoder: Encoder) -> dict[str, Any]:
        """Write the manifest. Returns the part's report."""
        if self.part != TEXT and not self.storage.exists(EMPTY):
            write_empty(self.storage, encoder.encode_text([""]))
        shards = tuple(self.done[number].shard for number in range(len(self._source.shards)))
        manifest = Manifest(shards=shards, quarantined=dict(sorted(self._unreadable.items())), about=self._about)
        self.storage.write(MANIFEST, manifest.to_bytes())
        return {
            "folder": str(self.storage),
            "rows": manifest.rows,
            "bytes": sum(shard.bytes for shard in shards),
            "unreadable": self._unreadable.total(),
        }


def encode(
    config: PretrainConfig,
    encoder: Encoder,
    encoding: Encoding | None = None,
    *,
    progress: Progress | None = None,
    fence: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Encode missing shards and write the manifests. `encoding` does the work; by default this process does.

    `progress` is called after each shard: `done` of `of` shards, and `rows` of `of_rows`. `fence` is called before
    each shard, and raises InvalidInput when another command owns the folders by now.

    Returns a report: `latents` by resolution and `text` (folder, rows, bytes, unreadable), `encoded` and `kept`
    shards. Raises InvalidInput when a folder holds something else, or when more rows cannot be read than
    data.max_quarantined_share.
    """
    source = source_manifest(config)
    encoding = encoding or here(config, source, encoder)
    parts = [str(each) for each in sorted({phase.resolution for phase in config.phases})]
    parts += [TEXT] if stores_text(config) else []
    folders = {part: PartFolder(config, part, source, encoder) for part in parts}
    for folder in folders.values():
        folder.look()
    count = len(source.shards)
    missing = [tuple(part for part in parts if number not in folders[part].done) for number in range(count)]
    works = [EncodingTask(number=number, parts=each) for number, each in enumerate(missing) if each]
    rows = source.rows - sum(source.shards[work.number].rows for work in works)
    _refuse_unreadable(folders.values())
    fence()
    for whole, (work, made) in enumerate(encoding(works), count - len(works) + 1):
        for part, each in made.items():
            folders[part].add(work.number, each)
        rows += source.shards[work.number].rows
        if progress:
            progress({"done": whole, "of": count, "rows": rows, "of_rows": source.rows})
        _refuse_unreadable(folders.values())
        fence()
    reports = {part: folder.finish(encoder) for part, folder in folders.items()}
    text = reports.pop(TEXT, None)
    return {"latents": reports, "text": text, "encoded": len(works), "kept": count - len(works)}


def _refuse_unreadable(folders: Iterable[PartFolder]) -> None:
    if faults := [fault for folder in folders if (fault := folder.fault())]:
        raise InvalidInput(faults)


def here(config: PretrainConfig, source: Manifest, encoder: Encoder) -> Encoding:
    shards = ShardEncoder(config, source, encoder, threads=threads_of_one(1))
    return lambda works: ((work, shards.encode(work)) for work in works)


def on_ray(config: PretrainConfig, source: Manifest) -> Encoding:
    import ray.data

    from giornata.pretrain.feeding.graph import actor_options

    def encoding(works: list[EncodingTask]) -> Iterator[tuple[EncodingTask, dict[str, EncodedPart]]]:
        if not works:
            return
        source_rows = ray.data.from_items([asdict(work) for work in works], override_num_blocks=len(works))
        dataset = source_rows.map_batches(
            EncodeShards,
            fn_constructor_args=(config, source),
            batch_size=1,
            batch_format="pyarrow",
            **actor_options(config),
        )
        for row in dataset.iter_rows():
            work = EncodingTask(number=row["number"], parts=tuple(row["parts"]))
            made = {part: done_before(latents_storage(config, part), work.number) for part in work.parts}
            if lost := [part for part, each in made.items() if each is None]:
                raise GiornataError(f"shard {work.number} was encoded, and is not there in {', '.join(lost)}")
            yield work, {part: each for part, each in made.items() if each is not None}

    return encoding


# ---- the program ----


def main(config: str, address: str | None = None, report: Path | None = None) -> int:
    return reported(report, lambda: _run(rooted(read_config(config)), address))


def _run(config: PretrainConfig, address: str | None) -> dict[str, Any]:
    with holding(latents_top(config), "encode") as held, counted(config) as progress:
        return _encoded(config, address, progress, partial(check_owner, held.storage, held.token))


@contextmanager
def counted(config: PretrainConfig, clock_s: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Add the cost of the encoders to the run's with each progress (giornata.pretrain.run_state.costs).

    Pictures that were encoded for another run cost nothing again.
    """
    now_ms = time.time_ns() // 1_000_000
    account = CostRecord(
        run=run_storage(config),
        attempt=TrainerStart(name=f"encode-{now_ms:013d}-{uuid.uuid4().hex}", began_s=clock_s(), began_ms=now_ms),
    )
    per_s = config.usd_per_s(0, config.encode.encoders)

    def add(progress: Mapping[str, int]) -> None:
        account.add(clock_s() - account.until_s, per_s)
        tell({**progress, "spent_usd": account.total_usd})

    try:
        yield add
    finally:
        account.add(clock_s() - account.until_s, per_s)
        account.close()


def _encoded(
    config: PretrainConfig, address: str | None, progress: Progress, fence: Callable[[], None]
) -> dict[str, Any]:
    device = device_of_an_encoder(config)
    if address is None and config.encode.encoders == 1:
        if device == "cuda" and not torch.cuda.is_available():
            hint = "say workers.use_gpu = false to encode on the CPU, or give the --address of a Ray with GPUs"
            raise InvalidInput([Fault(where="workers.use_gpu", message="there is no GPU here", hint=hint)])
        encoder = open_encoder(config.model, seed=config.seed, device=device)
        return encode(config, encoder, progress=progress, fence=fence)
    from giornata.pretrain.ray_train.cluster import connected

    # This encoder makes the digest and the empty caption's embedding, in the precision of the actors
    encoder = open_encoder(config.model, seed=config.seed, device="cpu", dtype=encoder_dtype(device))
    with connected(address):
        return encode(config, encoder, on_ray(config, source_manifest(config)), progress=progress, fence=fence)


if __name__ == "__main__":
    program(main)
