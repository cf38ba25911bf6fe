"""A folder's pictures and captions: everything that is wrong is told at once, by name."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from giornata.pictures.folder import FolderDataset, read_folder

PROMPT = "a photo of sks"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures, as far as their names go."""
    place = tmp_path / "my pictures"
    place.mkdir()
    for name in ("a.png", "b.JPG", "ç é.webp"):
        (place / name).write_bytes(name.encode())
    return place


def read(folder: Path, prompt: str | None = PROMPT, **bounds: Any) -> FolderDataset:
    return read_folder(folder, instance_prompt=prompt, **bounds)


def faults(found: FolderDataset) -> list[tuple[str, str]]:
    return [(fault.where, fault.message) for fault in found.faults]


def write_rows(folder: Path, *rows: object) -> None:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")


def test_pictures_are_sorted_hashed_and_named_as_they_are(folder: Path) -> None:
    found = read(folder)
    assert (found.faults, found.notes) == ((), ())
    assert [item.name for item in found.items] == ["a.png", "b.JPG", "ç é.webp"]
    last = found.items[-1]
    assert last.path == folder / "ç é.webp"
    assert last.sha256 == hashlib.sha256("ç é.webp".encode()).hexdigest()
    assert last.size_bytes == len("ç é.webp".encode())
    assert last.caption is None


def test_caption_files_beside_pictures_are_read_despite_bom_case_and_unicode_form(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf  a \xc3\xa9 caption, \n")
    (folder / "b.TXT").write_text("second")
    (folder / "c\u0327 e\u0301.txt").write_text("written by a Mac")
    found = read(folder, None)
    assert found.faults == ()
    assert [item.caption for item in found.items] == ["a é caption,", "second", "written by a Mac"]


@pytest.mark.parametrize("key", ["text", "prompt", "caption"])
def test_captions_in_metadata_jsonl_are_read_from_text_prompt_or_caption(key: str, folder: Path) -> None:
    rows = [{"file_name": name, key: f" of\u2028{name} "} for name in ("./a.png", "b.JPG", "c\u0327 é.webp")]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    (folder / "metadata.jsonl").write_text(text, encoding="utf-8-sig")
    found = read(folder, None)
    assert found.faults == ()
    assert [item.caption for item in found.items] == ["of\u2028./a.png", "of\u2028b.JPG", "of\u2028c\u0327 é.webp"]


def test_pictures_without_a_caption_take_the_prompt_and_a_note_says_so(folder: Path) -> None:
    (folder / "a.txt").write_text("own")
    found = read(folder)
    assert found.faults == ()
    assert [item.caption for item in found.items] == ["own", None, None]
    assert found.notes == ("without a caption of their own, trained with instance_prompt: b.JPG, ç é.webp",)


@pytest.mark.parametrize("prompt", [None, "", "  "])
def test_no_caption_and_no_prompt(prompt: str | None, folder: Path) -> None:
    message = "no picture has a caption, and there is no instance_prompt"
    assert faults(read(folder, prompt)) == [(str(folder), message)]
    (folder / "a.txt").write_text("own")
    single = "has no caption, and there is no instance_prompt"
    assert faults(read(folder, prompt)) == [("b.JPG", single), ("ç é.webp", single)]


def test_every_wrong_caption_is_told_at_once(folder: Path) -> None:
    for name in ("d.png", "e.png", "f.png", "g.png"):
        (folder / name).write_bytes(name.encode())
    (folder / "a.txt").write_text(" \n")
    (folder / "b.txt").write_bytes(b"caf\xe9")
    (folder / "d.txt").write_text("x" * 2001)
    (folder / "e.txt").write_bytes(b"a\0b")
    (folder / "f.txt").write_text("from text")
    (folder / "ghost.txt").write_text("whose?")
    write_rows(folder, {"file_name": "f.png", "text": "from metadata"}, {"file_name": "g.png", "text": "fine"})
    assert faults(read(folder, None)) == [
        ("a.txt", "is an empty caption"),
        ("b.txt", "is not UTF-8 (byte 3)"),
        ("d.txt", "is a caption of 2001 characters; at most 2000 are allowed"),
        ("e.txt", "holds control characters"),
        ("f.png", "has more than one caption: f.txt and metadata.jsonl:1"),
        ("ghost.txt", "is a caption without a picture"),
        ("ç é.webp", "has no caption, and there is no instance_prompt"),
    ]


def test_every_wrong_row_is_told_at_once_with_its_number(folder: Path) -> None:
    write_rows(
        folder,
        {"file_name": "a.png", "text": "fine"},
        '{"file_name": "b.JPG", "text": ',
        "",
        [1],
        {"text": "of what?"},
        {"file_name": "b.JPG"},
        {"file_name": "b.JPG", "text": "one", "prompt": "two"},
        {"file_name": "ç é.webp", "text": 7},
        {"file_name": "gone.png", "text": "x"},
        {"file_name": "sub/a.png", "text": "x"},
        {"file_name": "../secret.png", "text": "x"},
        "[" * 100_000,
    )
    found = read(folder)
    told = dict(faults(found))
    assert [item.caption for item in found.items] == ["fine", None, None]
    assert told.pop("metadata.jsonl:2").startswith("is not JSON: ")
    assert told.pop("metadata.jsonl:12").startswith("is not JSON: ")
    assert told == {
        "metadata.jsonl:4": 'has no "file_name"',
        "metadata.jsonl:5": 'has no "file_name"',
        "metadata.jsonl:6": "has no caption",
        "metadata.jsonl:7": "has more than one caption: text, prompt",
        "metadata.jsonl:8": '"text" is not a text',
        "metadata.jsonl:9": "names a picture that is not there: gone.png",
        "metadata.jsonl:10": "names a picture that is not there: sub/a.png",
        "metadata.jsonl:11": "names a picture that is not there: ../secret.png",
        "b.JPG": "has more than one caption: metadata.jsonl:6 and metadata.jsonl:7",
    }


def test_litter_is_skipped_and_the_rest_is_noted(folder: Path) -> None:
    for name in (".DS_Store", "._a.png", "Thumbs.db", "desktop.ini"):
        (folder / name).write_bytes(b"litter")
    assert read(folder).notes == ()
    (folder / "sub").mkdir()
    (folder / "sub" / "deep.png").write_bytes(b"deep")
    for number in range(22):
        (folder / f"{number:02}.pdf").write_bytes(b"x")
    found = read(folder)
    assert found.faults == ()
    assert len(found.items) == 3
    assert found.notes[0] == "subfolders are not read: sub"
    named = ", ".join(f"{number:02}.pdf" for number in range(20))
    assert found.notes[1].endswith(f"not read: {named} and 2 more")


def test_equal_pictures_with_equal_captions_count_once(folder: Path) -> None:
    (folder / "copy of a.png").write_bytes((folder / "a.png").read_bytes())
    found = read(folder)
    assert found.faults == ()
    assert [item.name for item in found.items] == ["a.png", "b.JPG", "ç é.webp"]
    assert found.notes == ("copy of a.png is the same picture as a.png, and is left out",)
    assert faults(read(folder, minimum=4)) == [
        (str(folder), "holds 3 different pictures; at least 4 are needed"),
    ]


def test_equal_pictures_with_different_captions_are_a_fault(folder: Path) -> None:
    (folder / "copy.png").write_bytes((folder / "a.png").read_bytes())
    (folder / "copy.txt").write_text("another")
    assert faults(read(folder)) == [("copy.png", "is the same picture as a.png, with another caption")]


def test_empty_files_are_not_called_equal(folder: Path) -> None:
    for name in ("x.png", "y.png"):
        (folder / name).write_bytes(b"")
    assert len(read(folder).items) == 5


def test_folder_with_too_few_or_too_many_pictures_is_refused(folder: Path) -> None:
    assert read(folder, minimum=3, maximum=3).faults == ()
    assert faults(read(folder, minimum=4)) == [(str(folder), "holds 3 different pictures; at least 4 are needed")]
    many = read(folder, maximum=2)
    assert faults(many) == [(str(folder), "holds 3 pictures; at most 2 are allowed")]
    assert many.items == ()


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in [("gone", "does not exist"), ("file", "is a file"), ("empty", "holds no pictures")]:
        found = read(tmp_path / name)
        assert faults(found) == [(str(tmp_path / name), message)]
        assert found.faults[0].hint


def test_files_that_cannot_be_read_are_told_beside_everything_else(folder: Path) -> None:
    (folder / "dangling.png").symlink_to(folder / "nowhere.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "large.png").write_bytes(bytes(3 << 20))
    (folder / os.fsdecode(b"\xff.png")).write_bytes(b"oddly named")
    (folder / "ghost.txt").write_text("whose?")
    found = read(folder, max_file_bytes=2 << 20)
    assert faults(found) == [
        ("\\udcff.png", "has a name that is not text (UTF-8)"),
        ("dangling.png", "is a link that leads nowhere"),
        ("ghost.txt", "is a caption without a picture"),
        ("large.png", "is 3.0 MiB; at most 2 MiB are allowed"),
        ("pipe.png", "is not a regular file"),
    ]
    assert [item.name for item in found.items] == ["a.png", "b.JPG", "ç é.webp"]


# ---- repeats


def test_repeats_in_metadata_with_a_caption_or_without(folder: Path) -> None:
    (folder / "b.txt").write_text("beside it")
    write_rows(
        folder,
        {"file_name": "a.png", "text": "own", "repeats": 3},
        {"file_name": "b.JPG", "num_repeats": 10},
        {"file_name": "ç é.webp", "repeats": 2, "text": None},
    )
    found = read(folder)
    assert found.faults == ()
    assert [(item.caption, item.repeats) for item in found.items] == [("own", 3), ("beside it", 10), (None, 2)]


def test_resolutions_in_metadata_are_read_for_each_picture(folder: Path) -> None:
    write_rows(
        folder,
        {"file_name": "a.png", "text": "own", "resolution": 512},
        {"file_name": "b.JPG", "resolution": 768},
        {"file_name": "ç é.webp", "text": "three"},
    )
    found = read(folder)
    assert found.faults == ()
    assert [item.resolution for item in found.items] == [512, 768, None]


@pytest.mark.parametrize("resolution", [0, 63, 2049, "512", True])
def test_resolutions_that_mean_nothing(resolution: object, folder: Path) -> None:
    write_rows(folder, {"file_name": "a.png", "text": "own", "resolution": resolution})
    assert faults(read(folder)) == [("metadata.jsonl:1", 'has "resolution" that cannot be understood')]


@pytest.mark.parametrize("repeats", [0, -1, 1001, 1.5, "3", True, [1]])
def test_repeats_that_mean_nothing(repeats: object, folder: Path) -> None:
    write_rows(folder, {"file_name": "a.png", "text": "own", "repeats": repeats})
    assert faults(read(folder)) == [("metadata.jsonl:1", 'has "repeats" that cannot be understood')]


def test_conflicting_repeats_in_metadata_are_faults(folder: Path) -> None:
    both = {"file_name": "a.png", "repeats": 2, "num_repeats": 2}
    write_rows(folder, both, {"file_name": "b.JPG", "repeats": 2}, {"file_name": "b.JPG", "repeats": 3})
    assert faults(read(folder)) == [
        ("metadata.jsonl:1", 'has "repeats" that cannot be understood'),
        ("metadata.jsonl:3", "repeats a picture another number of times"),
    ]


@pytest.fixture
def kohyas(tmp_path: Path) -> Path:
    """A training folder as kohya's scripts have it."""
    place = tmp_path / "img"
    for folder, name in (("10_sks dog", "1.png"), ("10_sks dog", "2.png"), ("1_other_thing", "1.png")):
        (place / folder).mkdir(parents=True, exist_ok=True)
        (place / folder / name).write_bytes(f"{folder}/{name}".encode())
    return place


def test_kohyas_folders_say_repeats_and_captions(kohyas: Path) -> None:
    (kohyas / "10_sks dog" / "2.txt").write_text("sks dog, asleep")
    (kohyas / "log").mkdir()
    found = read(kohyas, None)
    assert found.faults == ()
    assert [(item.name, item.caption, item.repeats) for item in found.items] == [
        ("10_sks dog - 1.png", "sks dog", 10),
        ("10_sks dog - 2.png", "sks dog, asleep", 10),
        ("1_other_thing - 1.png", "other_thing", 1),
    ]
    assert found.items[-1].path == kohyas / "1_other_thing" / "1.png"
    assert found.notes == ("subfolders are not read: log",)


def test_faults_in_kohyas_folders_name_the_folder(kohyas: Path) -> None:
    (kohyas / "10_sks dog" / "3.txt").write_text("whose?")
    (kohyas / "1_other_thing" / "4.png").symlink_to("nowhere")
    assert [where for where, _ in faults(read(kohyas))] == ["10_sks dog - 3.txt", "1_other_thing - 4.png"]


def test_pictures_of_kohya_folders_count_together_against_minimum_and_maximum(kohyas: Path) -> None:
    assert faults(read(kohyas, minimum=4)) == [(str(kohyas), "holds 3 different pictures; at least 4 are needed")]
    assert faults(read(kohyas, maximum=2)) == [(str(kohyas), "holds 3 pictures; at most 2 are allowed")]


def test_the_same_picture_in_two_of_kohyas_folders(kohyas: Path) -> None:
    (kohyas / "5_sks dog").mkdir()
    (kohyas / "5_sks dog" / "9.png").write_bytes((kohyas / "10_sks dog" / "1.png").read_bytes())
    message = "is the same picture as 10_sks dog - 1.png, with other repeats"
    assert faults(read(kohyas)) == [("5_sks dog - 9.png", message)]


@pytest.mark.parametrize("name", ["2024_holiday", "sks dog", "10_", "0_nothing", "_10_x"])
def test_subfolders_without_kohya_repeats_are_noted_and_not_read(folder: Path, tmp_path: Path, name: str) -> None:
    empty = tmp_path / "empty"
    (empty / name).mkdir(parents=True)
    (empty / name / "a.png").write_bytes(b"a")
    found = read(empty)
    assert [message for _, message in faults(found)] == ["holds no pictures"]
    assert found.notes == (f"subfolders are not read: {name}",)


def test_a_folder_with_pictures_of_its_own_is_read_alone(folder: Path) -> None:
    (folder / "10_sks dog").mkdir()
    (folder / "10_sks dog" / "z.png").write_bytes(b"z")
    found = read(folder)
    assert [item.repeats for item in found.items] == [1, 1, 1]
    assert found.notes == ("subfolders are not read: 10_sks dog",)


def test_folder_with_one_picture_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"a")
    assert read(tmp_path).faults == ()


def test_first_line_of_multiline_caption_is_used_and_noted_once(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"  a dog \r\nasleep\r\n")
    (folder / "b.txt").write_text("a cat\n\n")
    write_rows(folder, {"file_name": "ç é.webp", "text": "a bird\non a wire\nsinging"})
    found = read(folder, None)
    assert found.faults == ()
    assert [item.caption for item in found.items] == ["a dog", "a cat", "a bird"]
    assert found.notes == ("2 captions have several lines; the first of each is used",)


def test_caption_length_limit_applies_to_first_line_only(folder: Path) -> None:
    (folder / "a.txt").write_text("a dog\n" + "x" * 3000)
    found = read(folder)
    assert (found.faults, found.items[0].caption) == ((), "a dog")
    assert "1 caption has several lines; the first is used" in found.notes


def test_captions_have_the_ending_that_was_asked_for(folder: Path) -> None:
    (folder / "a.caption").write_text("a dog")
    (folder / "b.CAPTION").write_text("a cat")
    (folder / "b.txt").write_text("another cat")
    found = read(folder, caption_ending=".caption")
    assert [item.caption for item in found.items] == ["a dog", "a cat", None]
    assert "neither pictures nor captions (.caption, metadata.jsonl), and not read: b.txt" in found.notes


def test_metadata_in_a_subfolder_speak_of_its_pictures(folder: Path) -> None:
    inner = folder / "asleep" / "at night"
    inner.mkdir(parents=True)
    (inner / "d.png").write_bytes(b"d")
    write_rows(inner, {"file_name": "d.png", "text": "a dog at night", "repeats": 3})
    found = read(folder)
    assert (found.faults, found.notes) == ((), ())
    assert [(item.name, item.caption, item.repeats) for item in found.items][-1] == (
        "asleep - at night - d.png",
        "a dog at night",
        3,
    )


def test_metadata_above_name_pictures_in_subfolders(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "d.png").write_bytes(b"d")
    (folder / "other").mkdir()
    rows = [{"file_name": "./sub/d.png", "text": "deep"}, {"file_name": "a.png", "text": "here"}]
    write_rows(folder, *rows, {"file_name": "none/e.png", "text": "x"}, {"file_name": "../f.png", "text": "x"})
    found = read(folder)
    assert {item.name: item.caption for item in found.items if item.caption} == {
        "a.png": "here",
        "sub - d.png": "deep",
    }
    assert faults(found) == [
        ("metadata.jsonl:3", "names a picture that is not there: none/e.png"),
        ("metadata.jsonl:4", "names a picture that is not there: ../f.png"),
    ]
    assert found.notes[0] == "subfolders are not read: other"


def test_a_folder_of_subfolders_with_metadata_is_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(name.encode())
        write_rows(tmp_path / name, {"file_name": "a.png", "text": name})
    found = read(tmp_path, None)
    assert [(item.name, item.caption) for item in found.items] == [("one - a.png", "one"), ("two - a.png", "two")]
    assert (found.faults, found.notes) == ((), ())


def test_faults_of_metadata_in_a_subfolder_name_it(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "d.png").write_bytes(b"d")
    write_rows(folder / "sub", "no row", {"file_name": "e.png", "text": "x"})
    assert [where for where, _ in faults(read(folder))] == ["sub - metadata.jsonl:1", "sub - metadata.jsonl:2"]


def test_a_folder_without_a_bound_takes_any_number(tmp_path: Path) -> None:
    for number in range(1001):
        (tmp_path / f"{number}.png").write_bytes(str(number).encode())
    found = read(tmp_path)
    assert (len(found.items), found.faults) == (1001, ())
