"""The guide about money shows the published step times as the code has them."""

from pathlib import Path

import pytest

from giornata.domain.jobs.estimates import COLLECTED, PUBLISHED_PACES

GUIDE = (Path(__file__).parents[2] / "docs/how-to/money.md").read_text()


@pytest.mark.parametrize("pace", PUBLISHED_PACES, ids=lambda pace: pace.gpu)
def test_the_guide_has_the_row_of_each_gpu(pace):
    (row,) = [line for line in GUIDE.splitlines() if line.startswith(f"| {pace.gpu} |")]
    _, _, seconds, _, price, _ = (each.strip() for each in row.split("|"))
    least, _, greatest = seconds.partition("–")
    assert (float(least), float(greatest or least)) == (pace.least_s, pace.greatest_s)
    dollars = None if price == "–" else float(price.removeprefix("$").split()[0])
    assert dollars == (None if pace.price_micro_usd_per_hour is None else pace.price_micro_usd_per_hour / 1_000_000)


def test_the_guide_says_when_the_figures_were_collected():
    assert COLLECTED in GUIDE
