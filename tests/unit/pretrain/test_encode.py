"""The offline job: each shard once, to the same bytes whatever interrupted it, and never mixed with another's."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.fixtures.pretrain_shards import write_shards

from giornata.diffusion.encode.captions import Embedding
from giornata.domain.errors import InvalidInput
from giornata.pretrain.data import columns
from giornata.pretrain.data.fence import FenceClock, check, claim
from giornata.pretrain.data.manifest import Shard
from giornata.pretrain.encode import encode, here
from giornata.pretrain.encoding.encode_shards import EncodedPart, EncodingTask, ShardEncoder
from giornata.pretrain.encoding.encoded import (
    encoded_manifest,
    latents_storage,
    latents_top,
    read_empty,
    source_manifest,
)
from giornata.pretrain.encoding.encoder import Encoder, open_encoder
from giornata.pretrain.encoding.transforms import Posterior
from giornata.pretrain.recipes import sdxl_tiny
from giornata.protocol.pretraining import Mode, PretrainConfig

SHARDS, ROWS = 3, 7
SIZES = ((64, 64), (96, 64), (64, 96))


def config_at(folder: Path, **options: object) -> PretrainConfig:
    config = sdxl_tiny(str(folder))
    data = replace(config.data, max_quarantined_share=0.2)
    return replace(config, data=data, encode=replace(config.encode, encode_batch_size=3, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return open_encoder(sdxl_tiny().model, seed=0, device="cpu")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_row_is_encoded_in_its_place(tmp_path: Path, encoder: Encoder) -> None:
    source = write_shards(tmp_path / "shards", shards=SHARDS, rows=ROWS, sizes=SIZES, broken=(4,))
    config = config_at(tmp_path)
    report = encode(config, encoder)
    assert (report["encoded"], report["kept"]) == (SHARDS, 0)
    assert report["text"]["rows"] == SHARDS * ROWS
    assert report["latents"]["32"]["rows"] == SHARDS * ROWS
    assert report["latents"]["32"]["unreadable"] == 1
    manifest = encoded_manifest(config, 32, source)
    assert [shard.rows for shard in manifest.shards] == [ROWS] * SHARDS
    assert sum(manifest.quarantined.values()) == 1
    for number, shard in enumerate(manifest.shards):
        stored = pq.read_table(tmp_path / "latents" / "32" / shard.name)
        assert stored.column_names == [*columns.STORED_LATENTS, "latent_shape"]
        text = pq.read_table(tmp_path / "latents" / "text" / shard.name)
        assert text.column(columns.KEY).equals(stored.column(columns.KEY))
        assert {len(prompt) for prompt in text.column(columns.PROMPT).to_pylist()} == {77 * 64 * 2}
        original = pq.read_table(tmp_path / "shards" / source.shards[number].name)
        assert stored.column(columns.KEY).equals(original.column(columns.KEY))
        for place, row in enumerate(stored.to_pylist()):
            broken = (number, place) == (0, 4)
            assert bool(row[columns.REASON]) == broken
            assert len(row[columns.MEAN]) == (0 if broken else 4 * 4 * 4 * 2)
            assert row["latent_shape"] == ([0, 0, 0] if broken else [4, 4, 4])


def test_latents_are_those_of_the_picture(tmp_path: Path, encoder: Encoder) -> None:
    write_shards(tmp_path / "shards", shards=1, rows=2)
    encode(config_at(tmp_path), encoder)
    row = pq.read_table(tmp_path / "latents" / "64" / "shard-00000.parquet").to_pylist()[1]
    source = pq.read_table(tmp_path / "shards" / "shard-00000.parquet")
    image = Image.open(io.BytesIO(source.column(columns.IMAGE)[1].as_py()))
    expected = encoder.encode_images(np.asarray(image)[None])
    assert row[columns.MEAN] == expected.mean_BChw[0].tobytes()
    assert row[columns.LOGVAR] == expected.logvar_BChw[0].tobytes()
    text = pq.read_table(tmp_path / "latents" / "text" / "shard-00000.parquet").to_pylist()[1]
    expected_text = encoder.encode_text([row[columns.CAPTION]])
    assert expected_text.pooled_BP is not None
    assert text[columns.PROMPT] == expected_text.prompt_BLD[0].numpy().tobytes()
    assert text[columns.POOLED] == expected_text.pooled_BP[0].numpy().tobytes()


def test_the_empty_caption_lies_beside(tmp_path: Path, encoder: Encoder) -> None:
    write_shards(tmp_path / "shards", shards=1, rows=2)
    config = config_at(tmp_path, mode=Mode.HYBRID)
    encode(config, encoder)
    kept, wanted = read_empty(latents_storage(config, 32)), encoder.encode_text([""])
    assert np.array_equal(kept.prompt_BLD, wanted.prompt_BLD)
    assert kept.pooled_BP is not None
    assert wanted.pooled_BP is not None
    assert np.array_equal(kept.pooled_BP, wanted.pooled_BP)


class CountingEncoder:
    """An encoder that counts what it is given."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self.digest, self.scaling = encoder, encoder.digest, encoder.scaling
        self.pictures, self.captions = list[tuple[int, ...]](), list[str]()

    def encode_images(self, pixels_BHWC: np.ndarray) -> Posterior:
        self.pictures += [pixels.shape for pixels in pixels_BHWC]
        return self._encoder.encode_images(pixels_BHWC)

    def encode_text(self, captions: Sequence[str]) -> Embedding:
        self.captions += [caption for caption in captions if caption]
        return self._encoder.encode_text(captions)


def test_a_caption_is_encoded_once_for_all_resolutions(tmp_path: Path, encoder: Encoder) -> None:
    write_shards(tmp_path / "shards", shards=2, rows=ROWS)
    counting = CountingEncoder(encoder)
    encode(config_at(tmp_path), counting)
    assert len(counting.captions) == 2 * ROWS
    assert sorted(counting.pictures) == [(32, 32, 3)] * 2 * ROWS + [(64, 64, 3)] * 2 * ROWS


def test_hybrid_stores_no_text_which_can_be_added(tmp_path: Path, encoder: Encoder) -> None:
    write_shards(tmp_path / "shards", shards=1, rows=4)
    hybrid = config_at(tmp_path, mode=Mode.HYBRID)
    assert encode(hybrid, encoder)["text"] is None
    assert sorted(path.name for path in (tmp_path / "latents").iterdir()) == ["32", "64"]
    source = source_manifest(hybrid)
    encoded_manifest(hybrid, 32, source)
    with pytest.raises(InvalidInput, match=r"text: holds no manifest\.json.*giornata pretrain encode"):
        encoded_manifest(config_at(tmp_path), 32, source)
    counting = CountingEncoder(encoder)
    encode(config_at(tmp_path), counting)
    assert (counting.pictures, len(counting.captions)) == ([], 4)
    encoded_manifest(config_at(tmp_path), 32, source)


def test_latents_with_their_text_inside_are_refused_by_run_and_encode(tmp_path: Path, encoder: Encoder) -> None:
    source = write_shards(tmp_path / "shards", shards=1, rows=2)
    config = config_at(tmp_path)
    encode(config, encoder)
    for name in ("about.json", "manifest.json"):
        file = tmp_path / "latents" / "32" / name
        values = json.loads(file.read_text())
        values.get("about", values)["text"] = True  # as the first version described them
        file.write_text(json.dumps(values))
    refusal = r"first version, with the text within the latents.*run `giornata pretrain encode`"
    with pytest.raises(InvalidInput, match=refusal):
        encoded_manifest(config, 32, source)
    with pytest.raises(InvalidInput, match=refusal):
        encode(config, encoder)


def test_text_that_is_there_is_no_fault_for_hybrid(tmp_path: Path, encoder: Encoder) -> None:
    source = write_shards(tmp_path / "shards", shards=1, rows=2)
    encode(config_at(tmp_path), encoder)
    encoded_manifest(config_at(tmp_path, mode=Mode.HYBRID), 64, source)


class MachineGone(Exception):
    """The machine is gone."""


def test_interrupted_encode_keeps_whole_shards_and_ends_with_same_bytes(tmp_path: Path, encoder: Encoder) -> None:
    source = write_shards(tmp_path / "a" / "shards", shards=SHARDS, rows=ROWS, sizes=SIZES)
    whole, broken = config_at(tmp_path / "a"), config_at(tmp_path / "b")
    broken = replace(broken, data=whole.data)
    encode(whole, encoder)

    def until_lost(works: list[EncodingTask]) -> Iterable[tuple[EncodingTask, dict[str, EncodedPart]]]:
        for place, each in enumerate(here(broken, source, encoder)(works)):
            yield each
            if place == 1:
                raise MachineGone

    with pytest.raises(MachineGone):
        encode(broken, encoder, until_lost)
    folder = tmp_path / "b" / "latents" / "32"
    assert not (folder / "manifest.json").exists()
    (folder / "shard-00001.parquet").write_bytes(b"half of it")  # whose note is there
    (folder / "shard-00002.parquet").write_bytes(b"without a note")
    kept_before = (folder / "shard-00000.parquet").stat().st_mtime_ns
    report = encode(broken, encoder)
    assert (report["encoded"], report["kept"]) == (SHARDS - 1, 1)
    assert (folder / "shard-00000.parquet").stat().st_mtime_ns == kept_before
    assert contents(tmp_path / "b" / "latents") == contents(tmp_path / "a" / "latents")
    assert encode(broken, encoder)["encoded"] == 0


def test_an_encoding_that_was_taken_over_writes_no_more(tmp_path: Path, encoder: Encoder) -> None:
    write_shards(tmp_path / "shards", shards=SHARDS, rows=ROWS, sizes=SIZES)
    config = config_at(tmp_path)
    held = claim(latents_top(config), "encode", FenceClock(now_ms=lambda: 0))

    def told(progress: Mapping[str, int]) -> None:
        if progress["done"] == 2:  # long after, where nobody renewed what is held
            claim(latents_top(config), "encode", FenceClock(now_ms=lambda: 3_600_000))

    with pytest.raises(InvalidInput, match="was taken over by giornata pretrain encode"):
        encode(config, encoder, progress=told, fence=lambda: check(latents_top(config), held.token))
    names = latents_top(config).names()
    assert sum(name.startswith("64/") and name.endswith(".parquet") for name in names) == 2
    assert not any(name.endswith("manifest.json") for name in names)


def test_latents_of_something_else_are_refused_with_all_that_differs(tmp_path: Path, encoder: Encoder) -> None:
    write_shards(tmp_path / "shards", shards=1, rows=3)
    config = config_at(tmp_path)
    encode(config, encoder)
    other = open_encoder(config.model, seed=0, device="cpu", dtype=torch.float16)
    with pytest.raises(InvalidInput, match="encoder is"):
        encode(config, other)
    cropped = replace(config, data=replace(config.data, center_crop=False))
    with pytest.raises(InvalidInput) as refused:
        encode(cropped, encoder)
    assert {fault.message.split()[0] for fault in refused.value.faults} == {"center_crop", "seed"}
    write_shards(tmp_path / "shards", shards=1, rows=2)
    with pytest.raises(InvalidInput, match="source is"):
        encode(config, encoder)
    with pytest.raises(InvalidInput, match="source is"):
        encoded_manifest(config, 32, source_manifest(config))


def test_a_folder_with_other_files_is_refused(tmp_path: Path, encoder: Encoder) -> None:
    write_shards(tmp_path / "shards", shards=1, rows=3)
    (tmp_path / "latents" / "64").mkdir(parents=True)
    (tmp_path / "latents" / "64" / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(InvalidInput, match=r"is not empty \(holiday.jpg\)"):
        encode(config_at(tmp_path), encoder)


@pytest.mark.parametrize(("share", "stops"), [(0.09, True), (0.1, False)])
def test_too_many_unreadable_rows_stop_the_job(tmp_path: Path, encoder: Encoder, share: float, stops: bool) -> None:
    write_shards(tmp_path / "shards", shards=2, rows=10, broken=(3, 15))
    config = config_at(tmp_path)
    config = replace(config, data=replace(config.data, max_quarantined_share=share))
    if stops:
        with pytest.raises(InvalidInput, match="2 of 20 rows cannot be read at 32 px"):
            encode(config, encoder)
    else:
        assert encode(config, encoder)["latents"]["64"]["unreadable"] == 2


class CountedReasons(dict[str, int]):
    """Reasons of a shard that count how often they are looked at."""

    times = 0

    def values(self):  # type: ignore[no-untyped-def]
        type(self).times += 1
        return super().values()

    def items(self):  # type: ignore[no-untyped-def]
        type(self).times += 1
        return super().items()


def test_driver_work_per_encoded_shard_does_not_grow_with_shard_count(tmp_path: Path, encoder: Encoder) -> None:
    write_shards(tmp_path / "shards", shards=40, rows=1)
    config = config_at(tmp_path)

    def encoding(works: list[EncodingTask]) -> Iterable[tuple[EncodingTask, dict[str, EncodedPart]]]:
        for work in works:
            shard = Shard(name="x", rows=1, bytes=1, sha256="")
            yield work, dict.fromkeys(work.parts, EncodedPart(shard=shard, unreadable=CountedReasons(truncated=0)))

    CountedReasons.times = 0
    report = encode(config, encoder, encoding)
    assert report["encoded"] == 40
    assert 100 <= CountedReasons.times <= 4 * 120


def test_no_source_is_said(tmp_path: Path, encoder: Encoder) -> None:
    with pytest.raises(InvalidInput, match=r"holds no manifest\.json"):
        encode(config_at(tmp_path), encoder)


def test_encoded_shard_is_same_with_any_number_of_threads(tmp_path: Path, encoder: Encoder) -> None:
    source = write_shards(tmp_path / "shards", shards=1, rows=40, sizes=SIZES)
    written = []
    for threads in (1, 5):
        config = config_at(tmp_path / str(threads))
        config = replace(config, data=replace(config.data, shards=str(tmp_path / "shards"), random_flip=True))
        work = EncodingTask(number=0, parts=("32", "64", "text"))
        written.append(ShardEncoder(config, source, encoder, threads=threads).encode(work))
    assert written[0] == written[1]
