"""Drawn picture sets: the same bytes each time, different subjects, and fit to train on."""

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from giornata.diffusion.tiny.drawings import BACKGROUNDS, SUBJECTS, background, draw_picture, draw_subject
from giornata.domain.errors import InvalidInput
from giornata.pictures.inspection import PictureLimits
from giornata.pictures.inspector.examine import examine


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first = draw_subject("teal-heart", tmp_path / "a", count=5, seed=3)
    second = draw_subject("teal-heart", tmp_path / "b", count=5, seed=3)
    other = draw_subject("teal-heart", tmp_path / "c", count=5, seed=4)
    assert [path.name for path in first] == [f"teal-heart-{index:02d}.png" for index in range(5)]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert all(path.read_bytes() != twin.read_bytes() for path, twin in zip(first, other, strict=True))
    assert len({path.read_bytes() for path in first}) == 5


def test_a_longer_set_begins_with_the_shorter_one(tmp_path: Path) -> None:
    short = draw_subject("orange-fish", tmp_path / "a", count=3)
    long = draw_subject("orange-fish", tmp_path / "b", count=6)
    assert [path.read_bytes() for path in short] == [path.read_bytes() for path in long[:3]]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_picture_of_every_subject_passes_inspection(subject: str, tmp_path: Path) -> None:
    for path in draw_subject(subject, tmp_path, count=8):
        look = examine(path.name, path, PictureLimits())
        assert (look.faults, look.notes, look.width, look.height) == ([], [], 64, 64)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_subject_stands_free_on_its_background(subject: str) -> None:
    for index in range(16):
        picture = draw_picture(subject, index)
        ground = Image.new("RGB", picture.size, picture.getpixel((0, 0)))
        left, top, right, bottom = ImageChops.difference(picture, ground).getbbox()
        assert left > 0 and top > 0 and right < 64 and bottom < 64
        assert right - left >= 24
        named = BACKGROUNDS[background(index)]
        assert all(abs(a - b) <= 6 for a, b in zip(picture.getpixel((0, 0)), named, strict=True))


def test_any_two_subjects_differ_in_color_or_form() -> None:
    def prints(subject: str) -> list[bytes]:
        return [draw_picture(subject, index).resize((8, 8)).tobytes() for index in range(4)]

    def distance(one: bytes, other: bytes) -> float:
        return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)

    drawn = {subject: prints(subject) for subject in SUBJECTS}
    assert len(drawn) >= 4
    for one, other in combinations(drawn, 2):
        assert all(distance(a, b) > 8 for a, b in zip(drawn[one], drawn[other], strict=True)), (one, other)


def test_size_scales_the_picture() -> None:
    assert draw_picture("striped-cube", 0, size_px=256).size == (256, 256)


def test_captions_lie_beside_the_pictures(tmp_path: Path) -> None:
    draw_subject("green-cactus", tmp_path, count=2, captions=True)
    assert (tmp_path / "green-cactus-00.txt").read_text() == "a sks cactus on a white background\n"
    assert (tmp_path / "green-cactus-01.txt").read_text() == "a sks cactus on a gray background\n"


def test_every_wrong_argument_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        draw_subject("unicorn", tmp_path / "none", count=0, size_px=4)
    assert [fault.where for fault in caught.value.faults] == ["subject", "count", "size_px"]
    assert "teal-heart" in caught.value.faults[0].hint
    assert not (tmp_path / "none").exists()


def test_the_command_line_draws(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "giornata.diffusion.tiny.drawings",
        "two-tone-house",
        str(tmp_path),
        "--count",
        "2",
    ]
    subprocess.run([*command, "--size", "96"], check=True)
    for index in range(2):
        with Image.open(tmp_path / f"two-tone-house-{index:02d}.png") as picture:
            assert picture.size == (96, 96)
    refused = subprocess.run([*command[:3], "unicorn", str(tmp_path)], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "there is no unicorn" in refused.stderr
