"""Times, sizes and sums as people write them."""

from datetime import UTC, datetime, timedelta

import pytest

from giornata.cli.spec_words import parse_assignments
from giornata.cli.words import ago, ahead, cost, duration, size
from giornata.domain.errors import InvalidInput


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.84, "0.8 s"), (42, "42 s"), (187, "3:07 min"), (3723, "1:02:03 h"), (302_400, "3.5 d")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(999, "999 B"), (1500, "1.5 kB"), (70_000_000, "70.0 MB"), (2e9, "2.0 GB")]
)
def test_sizes(count, words):
    assert size(int(count)) == words


def test_what_is_ahead():
    now = datetime(2026, 11, 22, tzinfo=UTC)
    assert ahead(now + timedelta(seconds=42), now) == "in 42 s"
    assert ahead(now - timedelta(seconds=1), now) == "now"


def test_a_sum_and_no_sum():
    assert cost(2259) == "$0.002259"
    assert cost(0) == "–"


def test_how_long_ago():
    now = datetime(2026, 11, 20, tzinfo=UTC)
    assert ago(now - timedelta(seconds=90), now) == "1:30 min ago"


def test_assignments_are_json_where_they_read_as_json():
    given = parse_assignments(
        ["rank=32", "random_flip=true", "seed=null", "instance_prompt=a dog = good", "x=[1, 2]"]
    )
    assert given == {"rank": 32, "random_flip": True, "seed": None, "instance_prompt": "a dog = good", "x": [1, 2]}


def test_every_broken_assignment_is_named():
    with pytest.raises(InvalidInput) as refused:
        parse_assignments(["rank", "=3", "seed=1"])
    assert len(refused.value.faults) == 2
