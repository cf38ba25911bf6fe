"""The whole check: faults of the folder, of captions and of pictures come in one answer."""

from pathlib import Path

from giornata.diffusion.drawings import draw_subject
from giornata.pictures.check import check_folder
from giornata.pictures.inspection import PictureLimits


def test_a_good_folder_has_no_faults(tmp_path: Path) -> None:
    paths = draw_subject("green-cactus", tmp_path, count=4, captions=True)
    checked = check_folder(tmp_path, instance_prompt=None)
    assert checked.faults == ()
    assert [item.path for item in checked.items] == paths
    assert [one.width for one in checked.inspections] == [64] * 4
    assert checked.items[1].caption == "a sks cactus on a gray background"
    assert checked.notes == ()


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
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
