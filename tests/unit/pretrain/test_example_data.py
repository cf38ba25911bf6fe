"""The example data are what they say: each odd row is odd in its way, in every form."""

import hashlib
import io
from pathlib import Path

import pytest
from PIL import Image
from tests.fixtures.pretrain_oddities import ODDITIES
from tests.fixtures.pretrain_sources import write_example

from giornata.diffusion.encode.decoding import NotAPicture, Undecodable, decode
from giornata.pretrain.data.examination import Refusal
from giornata.pretrain.data.source_rows import rows_of
from giornata.pretrain.data.sources import Kind, find
from giornata.protocol.pretraining import Ingest


def test_every_sort_of_oddity_is_there(tmp_path: Path) -> None:
    example = write_example(tmp_path, rows=30)
    # No oddities of one row, and modes are kept unless somebody names those that are
    odd = {Refusal.SOURCE_DAMAGED, Refusal.TOO_MANY_PIXELS, Refusal.MODE}
    assert set(example.refused) == set(Refusal) - odd
    assert len(example.rows) == 30 + len(ODDITIES)
    assert len(example.kept) == len(example.rows) - sum(example.refused.values())


def test_pictures_are_as_broken_as_they_say(tmp_path: Path) -> None:
    raised = {Refusal.DAMAGED: Undecodable, Refusal.NOT_A_PICTURE: NotAPicture}
    for row in write_example(tmp_path, rows=30, side_px=32).rows:
        if row.refusal in raised:
            with pytest.raises(raised[row.refusal]):
                decode(row.image or b"")
        elif row.image:
            assert min(decode(row.image).size) >= (32 if row.refusal is not Refusal.TOO_SMALL else 1)


def test_a_cut_jpeg_opens_and_fails_when_its_pixels_are_read(tmp_path: Path) -> None:
    rows = write_example(tmp_path, rows=30).rows
    cut = next(row for row in rows if row.refusal is Refusal.DAMAGED and row.suffix == "jpg")
    assert Image.open(io.BytesIO(cut.image or b"")).size >= (64, 64)


def test_sizes_proportions_and_encodings_differ(tmp_path: Path) -> None:
    rows = [row for row in write_example(tmp_path, rows=40).rows if row.refusal is None]
    images = [Image.open(io.BytesIO(row.image or b"")) for row in rows]
    assert {image.format for image in images} == {"JPEG", "PNG", "WEBP", "TIFF"}
    assert {image.mode for image in images} >= {"RGB", "CMYK", "I;16", "P", "RGBA", "LAB"}
    assert len({image.size for image in images}) >= 5


@pytest.mark.parametrize("kind", Kind)
def test_every_form_is_read_as_it_was_written(kind: Kind, tmp_path: Path) -> None:
    example = write_example(tmp_path, rows=25, kind=kind, files=3)
    source = find(str(tmp_path), Ingest())
    assert source.kind is kind
    read = [raw for piece in source.pieces for raw in rows_of(source.storage, piece, Ingest())]
    assert [(raw.source, raw.place, raw.image or b"") for raw in read] == [
        (row.source, row.place, row.image or b"") for row in example.rows
    ]
    assert [raw.caption for raw in read] == [
        row.caption.strip() if isinstance(row.caption, str) else "" for row in example.rows
    ]


@pytest.mark.parametrize("kind", Kind)
def test_equal_arguments_give_equal_bytes(kind: Kind, tmp_path: Path) -> None:
    digests = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_example(tmp_path / folder, rows=6, kind=kind, seed=seed)
        if kind is Kind.WEBDATASET:
            assert len(list((tmp_path / folder).iterdir())) == 2
        files = sorted(path for path in (tmp_path / folder).rglob("*") if path.is_file())
        digests.append(hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest())
    assert digests[0] == digests[1] != digests[2]
