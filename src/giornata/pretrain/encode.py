"""The offline encoding: `python -m giornata.pretrain.encode CONFIG`.

Every shard of the source is read once: for all resolutions of the phases together, and for the text. The command may
be killed at any moment: the next one keeps whole shards, and the result is the same to the byte. With more than one
encoder, or with an address, actors of Ray encode the shards; otherwise this process does.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.pretrain.data.fence import check as check_owner
from giornata.pretrain.data.fence import holding
from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.encoding.encode_shards import EncodeShards, EncodingTask, ShardEncoder, threads_of_one
from giornata.pretrain.encoding.encoded import (
    TEXT,
    EncodedPart,
    PartFolder,
    done_before,
    latents_storage,
    latents_top,
    source_manifest,
    stores_text,
)
from giornata.pretrain.encoding.encoder import Encoder, device_of_an_encoder, encoder_dtype, open_encoder
from giornata.pretrain.recipes import read_config
from giornata.pretrain.reported import program, reported, tell
from giornata.pretrain.run_state.committed import rooted, run_storage
from giornata.pretrain.run_state.costs import CostRecord, TrainerStart
from giornata.protocol.pretraining import PretrainConfig

Progress = Callable[[Mapping[str, int]], None]
Encoding = Callable[[list[EncodingTask]], Iterable[tuple[EncodingTask, dict[str, EncodedPart]]]]


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
                raise GiornataError(f"shard {work.number} was encoded, but is missing in {', '.join(lost)}")
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
