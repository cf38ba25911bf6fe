"""The whole check: faults of the folder, of captions and of pictures come in one answer."""

import io
import tracemalloc
from pathlib import Path

from PIL import Image

import giornata.pictures.inspector.display  # noqa: F401  (makes Pillow write HEIC)
from giornata.client.storage.training_folder import sendable
from giornata.diffusion.tiny.drawings import draw_subject
from giornata.pictures.check import check_folder
from giornata.pictures.inspection import PictureLimits

COUNT = 10_000
INSPECTOR_BYTES = 2**28
"""10,000 decoded pictures of 64 x 64 alone have 117 MiB, beside what Python and the decoders take."""


def test_a_good_folder_has_no_faults(tmp_path: Path) -> None:
    paths = draw_subject("green-cactus", tmp_path, count=4, captions=True)
    checked = check_folder(tmp_path, instance_prompt=None)
    assert checked.faults == ()
    assert [item.path for item in checked.items] == paths
    assert [one.width for one in checked.inspections] == [64] * 4
    assert checked.items[1].caption == "a sks cactus on a gray background"
    assert checked.notes == ()


def test_check_folder_reports_faults_of_folder_captions_and_pictures_together(tmp_path: Path) -> None:
    first, second, *_ = draw_subject("green-cactus", tmp_path, count=4)
    second.write_bytes(first.read_bytes()[:300])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "photo.HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(99))
    (tmp_path / "ghost.txt").write_text("whose?")
    assert {fault.where for fault in check_folder(tmp_path, instance_prompt=None).faults} == {
        str(tmp_path),
        "empty.jpg",
        "ghost.txt",
        "green-cactus-01.png",
        "photo.HEIC",
    }


def test_notes_name_their_picture(tmp_path: Path) -> None:
    draw_subject("green-cactus", tmp_path, count=3)
    (tmp_path / "notes.pdf").write_bytes(b"x")
    checked = check_folder(tmp_path, instance_prompt="a sks cactus", limits=PictureLimits(min_side_px=65))
    assert [fault.where for fault in checked.faults] == [item.name for item in checked.items]
    assert any("notes.pdf" in note for note in checked.notes)


def test_check_folder_note_counts_pictures_rotated_by_exif(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for number, path in enumerate(draw_subject("green-cactus", tmp_path, count=5)):
        Image.open(path).save(path, exif=exif if number < 3 else None)
    assert check_folder(tmp_path, instance_prompt="a sks cactus").notes == ("3 of 5 pictures were turned upright",)


def test_heic_pictures_of_a_phone_are_read(tmp_path: Path) -> None:
    for path in draw_subject("green-cactus", tmp_path, count=2):
        Image.open(path).convert("RGB").save(path.with_suffix(".HEIC"), "HEIF")
        path.unlink()
    checked = check_folder(tmp_path, instance_prompt="a sks cactus")
    assert checked.faults == ()
    assert [(one.format, one.width) for one in checked.inspections] == [("HEIF", 64)] * 2


def test_ten_thousand_small_pictures_need_little_memory(tmp_path: Path) -> None:
    """Of this process less than 4 KiB a picture, and of the inspecting one an address space that holds no 10,000
    pictures."""
    one = io.BytesIO()
    Image.new("RGB", (64, 64), "teal").save(one, "BMP")
    for number in range(COUNT):
        (tmp_path / f"{number:05}.bmp").write_bytes(one.getvalue() + number.to_bytes(4, "big"))
    limits = PictureLimits(memory_bytes=INSPECTOR_BYTES)
    tracemalloc.start()
    try:
        checked = check_folder(tmp_path, instance_prompt="a sks cactus", limits=limits)
        sent = sendable(checked)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(checked.items), checked.faults) == (COUNT, ())
    assert len(sent.items) == len({item.sha256 for item in sent.items}) == COUNT
    assert len("".join(checked.notes)) < 10_000
    assert peak_bytes < 4096 * COUNT
