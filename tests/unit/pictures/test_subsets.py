"""Several folders of pictures as one dataset."""

import subprocess
import sys

import pytest

from giornata.pictures.subsets import KeptParts, Subset, check_subsets


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    drawing = [sys.executable, "-m", "giornata.diffusion.tiny.drawings", "teal-heart", str(folder), "--count", "4"]
    subprocess.run([*drawing, "--size", "64"], check=True)
    return sorted(path.read_bytes() for path in folder.glob("*.png"))


@pytest.fixture
def folders(tmp_path, drawn):
    for name, numbers in (("dogs", (0, 1)), ("cats", (2, 3))):
        (tmp_path / name).mkdir()
        for number in numbers:
            (tmp_path / name / f"{number}.png").write_bytes(drawn[number])
    return tmp_path


def test_each_folder_has_its_repeats_its_captions_and_its_words(folders):
    (folders / "dogs" / "0.txt").write_text("asleep")
    (folders / "cats" / "2.cap").write_text("a cat, black")
    checked = check_subsets(
        [
            Subset(path=folders / "dogs", repeats=10, caption="sks dog", trigger="sks"),
            Subset(path=folders / "cats", caption="cat", caption_extension=".cap", prefix="photo,", suffix=", sharp"),
        ],
        instance_prompt=None,
    )
    assert [(item.name, item.caption, item.repeats) for item in checked.items] == [
        ("dogs - 0.png", "sks asleep", 10),
        ("dogs - 1.png", "sks dog", 10),
        ("cats - 2.png", "photo, a cat, black , sharp", 1),
        ("cats - 3.png", "photo, cat , sharp", 1),
    ]
    assert checked.faults == ()
    assert len(checked.inspections) == 4


def test_a_picture_in_two_folders_is_repeated_as_often_as_both_say(folders, drawn):
    (folders / "cats" / "again.png").write_bytes(drawn[0])
    one = Subset(path=folders / "dogs", repeats=3, caption="pet")
    same = check_subsets([one, Subset(path=folders / "cats", repeats=2, caption="pet")], instance_prompt=None)
    assert [item.repeats for item in same.items] == [5, 3, 2, 2]
    other = check_subsets([one, Subset(path=folders / "cats", caption="cat")], instance_prompt=None)
    assert [fault.where for fault in other.faults] == ["cats - again.png"]


def test_a_folder_at_two_resolutions_holds_its_pictures_twice(folders):
    small, large = Subset(path=folders / "dogs", resolution=512), Subset(path=folders / "dogs", repeats=2)
    checked = check_subsets([small, large], instance_prompt="a dog")
    assert checked.faults == ()
    assert [(item.name, item.resolution, item.repeats) for item in checked.items] == [
        ("dogs 1 - 0.png", 512, 1),
        ("dogs 1 - 1.png", 512, 1),
        ("dogs 2 - 0.png", None, 2),
        ("dogs 2 - 1.png", None, 2),
    ]


def test_faults_of_every_folder_come_at_once(folders):
    (folders / "dogs" / "broken.png").write_bytes(b"no picture")
    asked = [Subset(path=folders / "dogs"), Subset(path=folders / "cats"), Subset(path=folders / "none")]
    faults = check_subsets(asked, instance_prompt=None).faults
    places = {fault.where for fault in faults}
    assert {"dogs - broken.png", str(folders / "cats"), str(folders / "none")} <= places


def test_the_least_number_of_pictures_is_that_of_all_folders(folders):
    asked = [Subset(path=folders / name, caption="pet") for name in ("dogs", "cats")]
    assert check_subsets(asked, instance_prompt=None, minimum=4).faults == ()
    (fault,) = check_subsets(asked, instance_prompt=None, minimum=5).faults
    assert "4 different pictures" in fault.message


def test_pictures_that_a_file_of_captions_does_not_name_are_left_out(folders):
    asked = Subset(path=folders / "dogs", captions={"1": "a dog, lying"})
    checked = check_subsets([asked], instance_prompt=None, minimum=1)
    assert [(item.name, item.caption) for item in checked.items] == [("dogs - 1.png", "a dog, lying")]
    assert len(checked.inspections) == 1


def test_captions_end_in_caption_where_nothing_is_said_and_there_are_such(folders):
    (folders / "dogs" / "0.caption").write_text("one")
    (folders / "cats" / "2.txt").write_text("two")
    asked = [Subset(path=folders / name, caption="pet") for name in ("dogs", "cats")]
    captions = [item.caption for item in check_subsets(asked, instance_prompt=None).items]
    assert captions == ["one", "pet", "two", "pet"]


def test_folders_of_one_name_and_masks_in_them_are_kept_apart(folders, tmp_path):
    for parent, name in (("one", "dogs"), ("two", "cats")):
        (tmp_path / parent).mkdir()
        (folders / name).rename(tmp_path / parent / "pets")
    for picture, parent in (("0.png", "one"), ("2.png", "two")):
        stem = picture.removesuffix(".png")
        draw = "import sys; from PIL import Image; Image.new('L', (64, 64), 255).save(sys.argv[1])"
        mask = [sys.executable, "-c", draw]
        subprocess.run([*mask, str(tmp_path / parent / "pets" / f"{stem}-masklabel.png")], check=True)
    asked = [Subset(path=tmp_path / parent / "pets", caption="pet") for parent in ("one", "two")]
    checked = check_subsets(asked, instance_prompt=None, masks_into=tmp_path / "copies")
    assert checked.faults == ()
    assert [item.name for item in checked.items] == [
        "pets 1 - 0.png",
        "pets 1 - 1.png",
        "pets 2 - 2.png",
        "pets 2 - 3.png",
    ]
    assert [item.path.parent.name for item in checked.items] == ["1", "pets", "2", "pets"]


def test_parts_that_a_folder_keeps_are_marked_in_its_captions(folders):
    """Behind prefix and suffix, and also in the caption of the job for pictures without one."""
    first = Subset(path=folders / "dogs", prefix="photo,", suffix=", sharp", kept=KeptParts(count=1))
    second = Subset(path=folders / "cats", caption="cat", kept=KeptParts(count=None))
    checked = check_subsets([first, second], instance_prompt="sks dog, red")
    assert checked.faults == ()
    captions = {item.name: item.caption for item in checked.items}
    assert captions["dogs - 0.png"] == "photo ||| sks dog, red , sharp"
    assert captions["cats - 3.png"] == "cat |||"
    assert KeptParts(count=0).marked("a, b") == "a, b"
    assert KeptParts(count=9).marked("a, b") == "a, b |||"
