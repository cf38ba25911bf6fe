"""The offline job: `python -m giornata.pretrain.encode CONFIG [--report FILE] [--address RAY]`.

Every shard of the source is read once: for all resolutions of the phases together, and for the text. The job may be
killed at any moment: what is whole is kept by the next run, and the end is the same to the byte. With more than one
encoder, or with an address, the shards are given to actors of Ray; otherwise they are encoded in this process.
"""

import argparse
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.pretrain.data.manifest import MANIFEST, Manifest
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encode_shards import Done, ShardEncoder, Work, done_before, threads_of_one
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
    to_bytes,
    write_empty,
)
from giornata.pretrain.encoding.encoder import Encoder
from giornata.pretrain.encoding.encoders import device_of_an_encoder, encoder_dtype, open_encoder
from giornata.pretrain.fence import check as check_owner
from giornata.pretrain.fence import holding
from giornata.pretrain.recipes import read_config
from giornata.pretrain.run_storage import rooted, run_storage
from giornata.pretrain.training.costs import CostRecord, TrainingAttempt
from giornata.protocol.pretraining import PretrainConfig

READERS = 16
"""Threads that look for what was done before: each note is a request to the storage."""
Progress = Callable[[Mapping[str, int]], None]
Encoding = Callable[[list[Work]], Iterable[tuple[Work, dict[str, Done]]]]


def encode(
    config: PretrainConfig,
    encoder: Encoder,
    encoding: Encoding | None = None,
    *,
    progress: Progress | None = None,
    fence: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Encode what is missing and write the manifests. `encoding` does the work; by default one after the other here.
    `progress` is told after each shard: `done` of `of` shards, and `rows` of `of_rows`. `fence` is asked before the
    next one, and raises InvalidInput when another command owns the folders by now.

    Returns a report: `latents` by resolution and `text` (folder, rows, bytes, unreadable), `encoded` and `kept`
    shards. Raises InvalidInput when a folder holds something else, or when more rows cannot be read than
    data.max_quarantined_share.
    """
    source = source_manifest(config)
    encoding = encoding or here(config, source, encoder)
    parts = [str(each) for each in sorted({phase.resolution for phase in config.phases})]
    parts += [TEXT] if stores_text(config) else []
    folders = {part: latents_storage(config, part) for part in parts}
    told = {part: about(config, part, source, encoder) for part in parts}
    for part, storage in folders.items():
        _claim(storage, told[part])
    count = len(source.shards)
    done = {part: _done_before(folders[part], count) for part in parts}
    missing = [tuple(part for part in parts if number not in done[part]) for number in range(count)]
    works = [Work(number=number, parts=each) for number, each in enumerate(missing) if each]
    unreadable = Unreadable(config, source)
    for part in parts:
        for each in done[part].values():
            unreadable.add(part, each)
    unreadable.refuse()
    rows = source.rows - sum(source.shards[work.number].rows for work in works)
    fence()
    for whole, (work, made) in enumerate(encoding(works), count - len(works) + 1):
        for part, each in made.items():
            done[part][work.number] = each
            unreadable.add(part, each)
        rows += source.shards[work.number].rows
        if progress:
            progress({"done": whole, "of": count, "rows": rows, "of_rows": source.rows})
        unreadable.refuse()
        fence()
    reports = {
        part: _finish(folders[part], told[part], [done[part][number] for number in range(count)], encoder)
        for part in parts
    }
    text = reports.pop(TEXT, None)
    return {"latents": reports, "text": text, "encoded": len(works), "kept": count - len(works)}


def _done_before(storage: Storage, shards: int) -> dict[int, Done]:
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(lambda number: done_before(storage, number), range(shards))
        return {number: each for number, each in enumerate(found) if each is not None}


def _claim(storage: Storage, told: dict[str, Any]) -> None:
    """Say what will lie in the folder, or refuse it when that is something else already."""
    if storage.exists(ABOUT):
        found = json.loads(storage.read(ABOUT))
        if has_text_inside(found):
            message = (
                "was written by an older version. Runs read it once it has a manifest, and nothing is added to it"
            )
            raise InvalidInput([Fault(where=str(storage), message=message, hint=AGAIN)])
        refuse_others(storage, found, told)
        return
    if others := storage.names():
        message = f"is not empty ({others[0]}) and does not say what it holds"
        raise InvalidInput([Fault(where=str(storage), message=message, hint="name another folder: encode.latents")])
    storage.write(ABOUT, to_bytes(told))


class Unreadable:
    """How many rows could not be read, by part (a resolution) and reason. A picture that cannot be read is so at
    every resolution: each is counted for itself. What a shard costs here does not grow with the number of shards."""

    def __init__(self, config: PretrainConfig, source: Manifest) -> None:
        self._shards, self._share, self._rows = config.data.shards, config.data.max_quarantined_share, source.rows
        self._by_part: dict[str, Counter[str]] = {}
        self._totals: Counter[str] = Counter()

    def add(self, part: str, done: Done) -> None:
        """One more shard."""
        if done.unreadable:
            self._by_part.setdefault(part, Counter()).update(done.unreadable)
            self._totals[part] += sum(done.unreadable.values())

    def refuse(self) -> None:
        """Raise InvalidInput when there are more than data.max_quarantined_share of the source's rows."""
        over = {each: total for each, total in self._totals.items() if total > self._share * self._rows}
        faults = []
        for part, total in over.items():
            first, count = self._by_part[part].most_common(1)[0]
            message = f"{total} of {self._rows} rows cannot be read at {part} px; {count}: {first}"
            hint = f"more than data.max_quarantined_share, {self._share:g}: ingest them again"
            faults.append(Fault(where=self._shards, message=message, hint=hint))
        if faults:
            raise InvalidInput(faults)


def _finish(storage: Storage, told: dict[str, Any], done: Sequence[Done], encoder: Encoder) -> dict[str, Any]:
    unreadable: Counter[str] = Counter()
    for each in done:
        unreadable.update(each.unreadable)
    if "resolution" in told and not storage.exists(EMPTY):
        write_empty(storage, encoder.encode_text([""]))
    shards = tuple(each.shard for each in done)
    manifest = Manifest(shards=shards, quarantined=dict(sorted(unreadable.items())), about=told)
    storage.write(MANIFEST, manifest.to_bytes())
    return {
        "folder": str(storage),
        "rows": manifest.rows,
        "bytes": sum(shard.bytes for shard in shards),
        "unreadable": unreadable.total(),
    }


def here(config: PretrainConfig, source: Manifest, encoder: Encoder) -> Encoding:
    """One shard after the other, in this process."""
    shards = ShardEncoder(config, source, encoder, threads=threads_of_one(1))
    return lambda works: ((work, shards.encode(work)) for work in works)


def on_ray(config: PretrainConfig, source: Manifest) -> Encoding:
    """In a pool of actors, as many as the configuration has encoders."""
    import ray.data

    from giornata.pretrain.encoding.encoder_actors import EncodeShards
    from giornata.pretrain.feeding.graph import actor_options

    def encoding(works: list[Work]) -> Iterator[tuple[Work, dict[str, Done]]]:
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
            work = Work(number=row["number"], parts=tuple(row["parts"]))
            made = {part: done_before(latents_storage(config, part), work.number) for part in work.parts}
            if lost := [part for part, each in made.items() if each is None]:
                raise GiornataError(f"shard {work.number} was encoded, and is not there in {', '.join(lost)}")
            yield work, {part: each for part, each in made.items() if each is not None}

    return encoding


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m giornata.pretrain.encode", description=__doc__)
    parser.add_argument("config", help="a recipe's name, or a TOML file")
    parser.add_argument("--report", type=Path, help="write a report to this file, as JSON")
    parser.add_argument("--address", help="of a Ray cluster")
    given = parser.parse_args(arguments)
    try:
        report = _run(rooted(read_config(given.config)), given.address)
    except InvalidInput as error:
        if given.report:
            given.report.write_text(json.dumps({"faults": [asdict(fault) for fault in error.faults]}))
        parser.exit(2, f"{error}\n")
    except GiornataError as error:
        if given.report:
            given.report.write_text(json.dumps({"error": str(error)}))
        parser.exit(1, f"{error}\n")
    if given.report:
        given.report.write_text(json.dumps(report))


def _run(config: PretrainConfig, address: str | None) -> dict[str, Any]:
    with holding(latents_top(config), "encode") as held, counted(config) as tell:
        return _encoded(config, address, tell, partial(check_owner, held.storage, held.token))


@contextmanager
def counted(config: PretrainConfig, clock_s: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Within, what the encoders cost is kept with the run (giornata.pretrain.training.costs), whenever progress is
    told, and at the end. A picture that was encoded for another run is not paid for again."""
    now_ms = time.time_ns() // 1_000_000
    account = CostRecord(
        run=run_storage(config),
        attempt=TrainingAttempt(name=f"encode-{now_ms:013d}-{uuid.uuid4().hex}", began_s=clock_s(), began_ms=now_ms),
    )
    per_s = config.usd_per_s(0, config.encode.encoders)

    def tell(progress: Mapping[str, int]) -> None:
        account.add(clock_s() - account.until_s, per_s)
        told = {**progress, "spent_usd": account.total_usd}
        print(json.dumps(told), flush=True)  # noqa: T201 - for the command line

    try:
        yield tell
    finally:
        account.add(clock_s() - account.until_s, per_s)
        account.close()


def _encoded(
    config: PretrainConfig, address: str | None, tell: Progress, fence: Callable[[], None]
) -> dict[str, Any]:
    device = device_of_an_encoder(config)
    if address is None and config.encode.encoders == 1:
        _refuse_without_gpu(device)
        return encode(config, open_encoder(config.model, seed=config.seed, device=device), progress=tell, fence=fence)
    import ray

    # Here only its digest is wanted, and the empty caption: in the precision in which the actors work.
    encoder = open_encoder(config.model, seed=config.seed, device="cpu", dtype=encoder_dtype(device))
    ray.init(address=address, log_to_driver=False)
    try:
        return encode(config, encoder, on_ray(config, source_manifest(config)), progress=tell, fence=fence)
    finally:
        ray.shutdown()


def _refuse_without_gpu(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        hint = "say workers.use_gpu = false to encode on the CPU, or give the --address of a Ray with GPUs"
        raise InvalidInput([Fault(where="workers.use_gpu", message="there is no GPU here", hint=hint)])


if __name__ == "__main__":
    main()
