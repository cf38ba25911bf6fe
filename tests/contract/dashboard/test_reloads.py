"""What a page of a running job loads again by the clock, however many are open."""

import re

from benchmarks.rig.open_pages import PARTS

from giornata.dashboard.rendering import HERE

RELOADS_A_MINUTE = 4
CLOCKED = re.compile(r'hx-get="\{\{ here \}\}([a-z/]*)[^"]*" hx-trigger="[^"]*every (\d+)s')


def test_page_of_a_running_training_job_reloads_few_parts_by_the_clock_and_the_benchmark_the_same() -> None:
    text = "".join((HERE / "templates" / name).read_text() for name in ("job.html", "job_head.html"))

    found = {part: float(period_s) for part, period_s in CLOCKED.findall(text) if part != "/pretraining"}

    assert found == dict(PARTS)
    assert sum(60 / period_s for period_s in found.values()) <= RELOADS_A_MINUTE
