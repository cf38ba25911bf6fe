"""Every path in docs/tour.md exists, every function that a walk names is in its file, and files are counted right."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "giornata"
STEP = re.compile(r"^\d+\. `([\w/]+\.py)`(?:, `(\w+)`)?", re.MULTILINE)


def test_every_path_of_the_tour_exists() -> None:
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", TOUR)
    assert len(paths) > 30
    assert [path for path in paths if not (PACKAGE / path).exists() and path != "src/giornata/"] == []


def test_each_walk_has_its_files_and_names_functions_that_are_there() -> None:
    walks = TOUR.split("## Walk ")[1:]
    assert [len(STEP.findall(walk)) for walk in walks] == [10, 10, 8]
    missing = [
        (path, name)
        for path, name in STEP.findall(TOUR)
        if name and not re.search(rf"(?:def|class) {name}\b", (PACKAGE / path).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_tour_answers_at_least_ten_questions() -> None:
    questions = re.findall(r"^\| [^|]+\? \| ([^|]+) \|$", TOUR, re.MULTILINE)
    assert len(questions) >= 10
    assert all("`" in answer for answer in questions)


def test_table_of_files_that_a_picture_passes_is_counted_right() -> None:
    rows = re.findall(r"^\| [\w, ]+ \| (\d+) \| (.+) \|$", TOUR, re.MULTILINE)
    listed = [re.findall(r"`([\w/]+\.py)`", paths) for _, paths in rows]
    assert [int(count) for count, _ in rows] == [len(paths) for paths in listed]
    distinct = {path for paths in listed for path in paths}
    assert len(distinct) == sum(map(len, listed))
    assert f"passes {len(distinct)} files" in TOUR
