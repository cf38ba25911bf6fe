"""Masks beside pictures become the alpha channels of copies, before anything is sent."""

from pathlib import Path

import pytest
from PIL import Image

from giornata.client.storage.training_folder import read_training_folder
from giornata.domain.errors import InvalidInput, Unavailable
from giornata.pictures.check import CheckedFolder, check_folder
from giornata.pictures.masks import fold_masks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures, two of them with a mask; one lies on its side."""
    place = tmp_path / "pictures"
    place.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    for number, color in enumerate(("red", "green", "blue")):
        image = Image.new("RGB", (100, 80), color)
        image.putpixel((0, 0), (9, 9, 9))
        image.save(place / f"{number}.png", exif=exif if number == 1 else None)
    mask = Image.new("L", (100, 80), 0)
    mask.paste(255, (0, 0, 50, 80))
    mask.save(place / "0-masklabel.png")
    mask.transpose(Image.Transpose.ROTATE_90).save(place / "1-masklabel.png")
    return place


def check(folder: Path, into: Path | None) -> CheckedFolder:
    return check_folder(folder, instance_prompt="a sks toy", masks_into=into)


def faults(found: CheckedFolder) -> list[tuple[str, str]]:
    return [(fault.where, fault.message) for fault in found.faults]


def test_a_mask_becomes_the_alpha_channel_of_a_copy(folder: Path, tmp_path: Path) -> None:
    into = tmp_path / "copies"
    into.mkdir()
    found = check(folder, into)
    assert found.faults == ()
    assert [item.name for item in found.items] == ["0.png", "1.png", "2.png"]
    first, second, third = found.items
    with Image.open(first.path) as copy:
        assert (copy.mode, copy.size) == ("RGBA", (100, 80))
        assert copy.getpixel((10, 10)) == (255, 0, 0, 255)
        assert copy.getpixel((90, 10)) == (255, 0, 0, 0)  # the color below stays
    with Image.open(second.path) as copy:
        assert copy.size == (80, 100)  # turned as a viewer shows it
        assert copy.getexif().get(0x0112, 1) == 1
    assert third.path == folder / "2.png"
    assert first.path.parent == second.path.parent == into
    assert first.size_bytes == first.path.stat().st_size


def test_the_same_picture_and_mask_have_the_same_hash(folder: Path, tmp_path: Path) -> None:
    hashes = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        hashes.append([item.sha256 for item in check(folder, tmp_path / name).items])
    assert hashes[0] == hashes[1]
    assert hashes[0][0] != check(folder, None).items[0].sha256


def test_masks_without_masked_loss_are_neither_used_nor_trained_on(folder: Path) -> None:
    found = check(folder, None)
    assert [item.path for item in found.items] == [folder / f"{number}.png" for number in range(3)]
    assert "masks are not used without masked_loss: 2 of them" in found.notes


def test_every_mask_that_cannot_be_used_is_named(folder: Path, tmp_path: Path) -> None:
    Image.new("L", (100, 80), 0).save(folder / "0-masklabel.png")
    Image.new("L", (80, 100), 255).save(folder / "2-masklabel.png")
    with pytest.raises(InvalidInput) as caught:
        read_training_folder(folder, instance_prompt="a sks toy", masks_into=tmp_path)
    assert [(fault.where, fault.message) for fault in caught.value.faults] == [
        ("0-masklabel.png", "is black all over: nothing of the picture would be learned"),
        ("2-masklabel.png", "and its picture are of different sizes: 80 x 100 and 100 x 80 pixels"),
    ]


def test_a_mask_that_is_broken_or_belongs_to_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "0-masklabel.png").write_bytes(b"\x89PNG\r\n\x1a\n nonsense")
    (folder / "7-masklabel.png").write_bytes((folder / "1-masklabel.png").read_bytes())
    found = faults(check(folder, tmp_path))
    assert ("7-masklabel.png", "is a mask without a picture") in found
    assert [where for where, _ in found] == ["7-masklabel.png", "0-masklabel.png"]


def test_sixteen_bits_are_refused_rather_than_cut(folder: Path, tmp_path: Path) -> None:
    Image.new("I;16", (100, 80), 65535).save(folder / "0-masklabel.png")
    Image.new("I;16", (100, 80), 30000).save(folder / "2.png")
    Image.new("L", (100, 80), 255).save(folder / "2-masklabel.png")
    assert faults(check(folder, tmp_path)) == [
        ("0-masklabel.png", "has 16 bits per channel; save it with 8"),
        ("2-masklabel.png", "belongs to a picture of 16 bits per channel; save the picture with 8"),
    ]


def test_masks_of_pictures_in_kohyas_folders(folder: Path, tmp_path: Path) -> None:
    folder.rename(folder.with_name("3_sks toy"))
    into = tmp_path / "copies"
    into.mkdir()
    found = check(tmp_path, into)
    assert found.faults == ()
    assert [item.path.parent == into for item in found.items] == [True, True, False]
    assert {item.repeats for item in found.items} == {3}


def test_a_process_that_does_not_start_is_not_the_pictures_fault(folder: Path, tmp_path: Path) -> None:
    items = check(folder, None).items
    masks = {"0.png": folder / "0-masklabel.png"}
    with pytest.raises(Unavailable, match="masks cannot be laid"):
        fold_masks(items, masks, into=tmp_path, python="no-such-python", max_file_bytes=2**20)
