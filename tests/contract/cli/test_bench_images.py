"""`giornata bench images`: orders in parts, killed and resumed, and the figures."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from tests.fixtures.drawn_orders import DrawingNode

from giornata.cli.generation.bench_orders import BenchState, order_parts, place_orders
from giornata.cli.generation.bench_report import (
    BenchReport,
    FailedBenchPicture,
    histogram_of,
    mean_of,
    report_of,
    seconds_per_picture,
)

START = datetime(2026, 11, 23, tzinfo=UTC)
PROMPTS = "a {red|blue} fox\n\na __animal__\n"


def drawn_parts(prompts, count, most):
    return [(part.first, part.prompts, part.repeats) for part in order_parts(prompts, count, most=most)]


def test_parts_give_each_prompt_as_many_pictures_or_one_more():
    assert drawn_parts(["a", "b"], 7, 4) == [(0, ("a", "b"), 2), (4, ("a", "b"), 1), (6, ("a",), 1)]
    assert drawn_parts(["a", "b", "c"], 5, 2) == [(0, ("a", "b"), 1), (2, ("c",), 1), (3, ("a", "b"), 1)]
    for count, most, prompts in ((60_600, 10_000, 130), (101, 7, 10), (9, 10, 11)):
        names = [str(number) for number in range(prompts)]
        parts = list(order_parts(names, count, most=most))
        drawn = [prompt for part in parts for prompt in part.prompts for _ in range(part.repeats)]
        assert len(drawn) == count and max(part.pictures for part in parts) <= most
        assert max(map(drawn.count, names)) - min(map(drawn.count, names)) <= 1


class KilledError(Exception):
    """Stands for a kill of the command."""


class KilledAfterSubmit:
    """A client that is killed when the server has taken the second order, before the answer is seen."""

    def __init__(self, client):
        self._client, self._placed = client, 0

    def jobs(self, **wanted):
        return self._client.jobs(**wanted)

    def submit(self, spec, **terms):
        job = self._client.submit(spec, **terms)
        self._placed += 1
        if self._placed == 2:
            raise KilledError
        return job


@pytest.fixture
def bench(run, tmp_path):
    (tmp_path / "prompts.txt").write_text(PROMPTS)

    def call(*more):
        words = ("bench", "images", "--prompts", str(tmp_path / "prompts.txt"), "--model", "some/model")
        words += ("--count", "9", "--order-size", "4", "--size", "64x64", "--steps", "4")
        state = ("--state", str(tmp_path / "state.json"), "--set", 'wildcards={"animal": ["cat", "dog"]}')
        return run(*words, *state, *more)

    return call


def draw_until(served, wanted):
    node, drawn = DrawingNode(served=served), 0
    while drawn < wanted:
        drawn += node.work()


def all_pictures(client):
    return [picture for job in client.jobs() for picture in client.pictures(job.id)]


def test_benchmark_killed_in_the_middle_and_resumed_draws_every_picture_once(served, tmp_path):
    client, file, asked = served.client(served.keys.admin), tmp_path / "state.json", {"count": 9}
    spec = {"model": "some/model", "width": 64, "height": 64, "wildcards": {"animal": ["cat", "dog"]}}
    parts = list(order_parts([line for line in PROMPTS.splitlines() if line], 9, most=4))
    with pytest.raises(KilledError):
        place_orders(KilledAfterSubmit(client), BenchState.opened(file, asked, seed=None), parts, spec, {})
    assert len(BenchState.opened(file, asked, seed=None).orders) == 1
    draw_until(served, 8)
    resumed = BenchState.opened(file, asked, seed=None)
    place_orders(client, resumed, parts, spec, {"budget_micro_usd": 900})
    draw_until(served, 1)
    pictures = all_pictures(client)
    seeds = sorted(picture.seed for picture in pictures)
    assert seeds == list(range(resumed.seed, resumed.seed + 9))
    assert {picture.prompt for picture in pictures} <= {"a red fox", "a blue fox", "a cat", "a dog"}
    report = report_of(client, [resumed.orders[number] for number in range(3)])
    assert (report.pictures, report.failed) == (9, 0)
    assert client.get_job(resumed.orders[2]).budget_micro_usd == 100


def test_command_draws_all_tells_its_figures_and_repeated_orders_nothing(bench, served, tmp_path):
    node = threading.Thread(target=draw_until, args=(served, 9), daemon=True)
    node.start()
    done = bench("--json")
    node.join()
    assert done.status == 0, done.errors
    told, client = done.json, served.client(served.keys.admin)
    assert (told["pictures"], told["failed"], len(told["orders"])) == (9, 0, 3)
    assert sum(pictures for _, _, pictures in told["histogram"]) == 9
    assert sum(pictures for _, _, pictures in told["node_histogram"]) == 9
    assert 0 < told["node_seconds_per_picture"] < told["seconds"]
    assert {picture.state for picture in all_pictures(client)} == {"succeeded"}
    again = bench()
    assert again.status == 0 and "3 of them placed before" in again.output and len(list(client.jobs())) == 3


def test_state_of_another_benchmark_is_refused(bench, served, tmp_path):
    BenchState.opened(tmp_path / "state.json", {"count": 1}, seed=None).save()
    assert "a benchmark with other settings" in bench().errors
    (tmp_path / "state.json").write_text("[]")
    assert "is not the state of a benchmark" in bench().errors
    assert not list(served.client(served.keys.admin).jobs())


def test_faults_of_the_settings_come_before_any_order(bench, served, tmp_path):
    (tmp_path / "prompts.txt").write_text("a (fox\n")
    done = bench("--size", "65x64")
    assert done.status == 2 and "PROMPT 1" in done.errors and "--size" in done.errors
    (tmp_path / "prompts.txt").write_text("\n")
    assert "the file has no prompt" in bench().errors
    assert not (tmp_path / "state.json").exists()


def test_refiner_has_the_published_steps_after_those_of_the_base(bench, served, tmp_path):
    draws = threading.Thread(target=draw_until, args=(served, 9), daemon=True)
    draws.start()
    assert bench("--steps", "20", "--refiner", "some/refiner").status == 0
    draws.join()
    spec = next(iter(served.client(served.keys.admin).jobs(include=["spec"]))).spec
    assert spec["num_inference_steps"] == 35 and spec["refiner"]["switch_at"] == pytest.approx(20 / 35)


def test_windows_tell_the_seconds_per_picture_of_ten_seconds_or_more():
    told = [(START + timedelta(seconds=each), more) for each, more in ((4, 2), (12, 2), (40, 7), (44, 2), (13, 0))]
    assert seconds_per_picture(told, begins_at=START) == [(3.0, 4), (4.0, 7), (2.0, 2)]
    assert seconds_per_picture([], begins_at=START) == []


def test_histogram_has_round_bins_with_every_picture():
    bins = histogram_of([(0.9, 1), (1.1, 16), (3.0, 16), (11.8, 2)])
    assert sum(pictures for _, _, pictures in bins) == 35 and len(bins) <= 13
    assert bins[0][:2] == (0.0, 1.0) and bins[-1] == (11.0, 12.0, 2) and bins[1][2] == 16
    assert histogram_of([(2.0, 3)])[0][2] == 3 and histogram_of([]) == ()
    assert mean_of([(1.0, 3), (5.0, 1)]) == 2.0 and mean_of([]) is None


def test_report_tells_pictures_per_second_and_dollar_and_what_failed():
    failed = FailedBenchPicture(order="job_1", number=3, error="cannot be drawn")
    report = BenchReport(
        pictures=1000,
        failed=1,
        canceled=0,
        blocked=2,
        seconds=500.0,
        cost_micro_usd=1_300_000,
        histogram=((1.0, 2.0, 400), (2.0, 3.0, 600)),
        node_seconds_per_picture=5.0,
        node_histogram=((4.0, 5.0, 250), (5.0, 6.0, 750)),
        failures=(failed,),
    )
    lines = report.lines()
    assert "wall time   500.0 s, 2.00 pictures/s" in lines and "blocked     2" in lines
    assert "node time   5 s per picture" in lines and f"{5:>9} – {6:<9}{750:>9}  {'█' * 40}" in lines
    assert any("769 pictures per dollar" in line for line in lines)
    assert lines[-1] == "failed: job_1 picture 3: cannot be drawn" and lines[-2].endswith("█" * 40)
