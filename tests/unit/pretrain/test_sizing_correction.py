"""The number of encoders while a run goes on, against a simulated pipeline.

The pipeline is events on a virtual clock: encoders whose blocks take a while, more or less; a buffer that is full at
some point; a link that may be the narrow place; trainers that take a batch for each step.
"""

import heapq
import math
import random
from dataclasses import dataclass

import pytest

from giornata.pretrain.planning.correction import Correction, Hourly, Observed, correct, pays_back, price_of

HOURLY = Hourly(trainers_usd=163.84, encoder_usd=1.212)
BATCH, BLOCK, BUFFER = 256, 32, 2048  # rows


@dataclass(kw_only=True)
class Pipeline:
    demand: float
    rate: float
    link: float = math.inf
    seed: int = 0

    def observe(self, encoders, steps=600):
        """What two figures are after so many steps."""
        draw = random.Random(f"{self.seed} {encoders}")
        now = waited = busy = room_since = link_free = 0.0
        ready = 0

        def block_s():
            return BLOCK / self.rate * draw.uniform(0.8, 1.2)

        working = []
        for place in range(encoders):
            took = block_s() * draw.random()
            busy += took
            working.append((took, place))
        heapq.heapify(working)

        def take_one():
            nonlocal ready, busy, link_free
            done, place = heapq.heappop(working)
            sent = max(done, room_since, link_free) + BLOCK / self.link
            link_free, ready, took = sent, ready + BLOCK, block_s()
            busy += took
            heapq.heappush(working, (sent + took, place))
            return sent

        for _ in range(steps):
            while ready < BUFFER and working[0][0] <= now and link_free <= now:
                take_one()
            while ready < BATCH:
                arrived = take_one()
                waited, now = waited + max(0.0, arrived - now), max(now, arrived)
            if ready >= BUFFER:
                room_since = now
            ready -= BATCH
            now += BATCH / self.demand
        return Observed(encoders=encoders, data_wait=waited / now, utilisation=min(1.0, busy / (encoders * now)))


def corrected(pipeline, encoders, *, changes=12, hourly=HOURLY, most=200):
    """Every number that was tried, with what was seen."""
    seen = []
    for turn in range(changes):
        pipeline.seed = turn
        now = pipeline.observe(encoders)
        decided = correct(now, seen, hourly, most=most)
        seen.append(now)
        encoders = decided.encoders
    return seen


def numbers(seen):
    return [each.encoders for each in seen]


@pytest.mark.parametrize("first", [1, 10, 40, 57])
def test_too_few_encoders_become_enough(first):
    seen = corrected(Pipeline(demand=5908, rate=101.85), first)
    assert seen[-1].data_wait < 0.02
    assert 58 <= seen[-1].encoders <= 62
    assert len(set(numbers(seen[-4:]))) == 1, "it comes to rest"


@pytest.mark.parametrize("first", [90, 150])
def test_too_many_encoders_become_fewer_and_trainers_do_not_wait(first):
    seen = corrected(Pipeline(demand=5908, rate=101.85), first)
    assert seen[-1].data_wait < 0.02
    assert 58 <= seen[-1].encoders <= 83
    assert len(set(numbers(seen[-4:]))) == 1


@pytest.mark.parametrize("encoders", [61, 64, 70, 80])
def test_a_pipeline_that_is_well_sized_is_left_alone(encoders):
    assert set(numbers(corrected(Pipeline(demand=5908, rate=101.85), encoders))) == {encoders}


def test_encoders_are_not_added_when_the_link_is_the_narrow_place():
    seen = corrected(Pipeline(demand=5908, rate=101.85, link=4500), 60)
    assert seen[0].data_wait > 0.02
    assert set(numbers(seen)) == {60}
    assert "network" in correct(seen[0], [], HOURLY, most=200).reason


def test_an_addition_that_did_not_pay_is_taken_back_and_not_tried_again():
    before = Observed(encoders=40, data_wait=0.20, utilisation=0.95)
    after = Observed(encoders=50, data_wait=0.19, utilisation=0.93)
    back = correct(after, [before], HOURLY, most=200)
    assert back.encoders == 40
    assert "dearer" in back.reason
    stay = correct(before, [before, after], HOURLY, most=200)
    assert (stay.encoders, "did not pay" in stay.reason) == (40, True)


def test_an_addition_that_paid_is_kept():
    before = Observed(encoders=40, data_wait=0.20, utilisation=0.95)
    after = Observed(encoders=50, data_wait=0.01, utilisation=0.93)
    assert correct(after, [before], HOURLY, most=200).encoders == 50


def test_a_number_that_was_too_small_after_a_cut_grows_again():
    large = Observed(encoders=60, data_wait=0.0, utilisation=0.65)
    small = Observed(encoders=46, data_wait=0.10, utilisation=0.98)
    assert correct(large, [], HOURLY, most=200).encoders == 46
    assert correct(small, [large], HOURLY, most=200).encoders == 52


@pytest.mark.parametrize(("data_wait", "utilisation"), [(0.019, 0.99), (0.004, 0.71), (0.006, 0.5), (0.0, 0.9)])
def test_between_the_bounds_nothing_moves(data_wait, utilisation):
    now = Observed(encoders=50, data_wait=data_wait, utilisation=utilisation)
    assert correct(now, [], HOURLY, most=200).encoders == 50


def test_growth_is_what_the_wait_says_and_at_most_twofold():
    def grown(wait):
        return correct(Observed(encoders=40, data_wait=wait, utilisation=0.99), [], HOURLY, most=200).encoders

    assert grown(0.3105) == 59  # 40 / (1 - 0.3105) = 58.01
    assert grown(0.021) == 41
    assert grown(0.9) == 80


def test_bounds_hold():
    short = Observed(encoders=40, data_wait=0.3, utilisation=0.99)
    assert correct(short, [], HOURLY, most=45).encoders == 45
    full = correct(short, [], HOURLY, most=40)
    assert (full.encoders, "the most" in full.reason) == (40, True)
    idle = Observed(encoders=40, data_wait=0.0, utilisation=0.1)
    assert correct(idle, [], HOURLY, least=20, most=40).encoders == 20
    assert correct(idle, [], HOURLY, most=40).encoders == 5


def test_dear_encoders_are_not_added_for_cheap_trainers():
    """A few cents of trainers wait; another whole machine costs more than it brings."""
    now = Observed(encoders=1, data_wait=0.03, utilisation=0.99)
    cheap = Hourly(trainers_usd=2.0, encoder_usd=30.0)
    stays = correct(now, [], cheap, most=10)
    assert (stays.encoders, "would cost" in stays.reason) == (1, True)
    assert correct(now, [], HOURLY, most=10) == Correction(
        encoders=2,
        reason="trainers wait 3.0%, 4.92 USD/h of them idle; 2 encoders cost 1.21 USD/h more",
        price_usd=HOURLY.trainers_usd + 2 * HOURLY.encoder_usd,
    )


@pytest.mark.parametrize(("work_left_h", "pays"), [(10.0, True), (0.5, False)])
def test_a_change_has_to_earn_its_restart(work_left_h, pays):
    """A wait of 10 % of 100 USD/h costs 11.1 USD an hour; five minutes in which nobody works cost 8.5 USD."""
    hourly = Hourly(trainers_usd=100.0, encoder_usd=0.5)
    now = Observed(encoders=4, data_wait=0.10, utilisation=0.99)
    found = correct(now, [], hourly, most=10)
    assert found.encoders == 5
    assert pays_back(now, found, hourly, work_left_h=work_left_h, restart_s=300) is pays


def test_a_number_that_stays_saves_nothing():
    now = Observed(encoders=4, data_wait=0.01, utilisation=0.8)
    found = correct(now, [], HOURLY, most=10)
    assert found.price_usd == price_of(now, HOURLY)
    assert not pays_back(now, found, HOURLY, work_left_h=1e6, restart_s=0.0)


def test_the_price_of_an_hours_work_grows_with_the_wait():
    seen = Observed(encoders=40, data_wait=0.2, utilisation=1.0)
    assert price_of(seen, HOURLY) == pytest.approx((163.84 + 40 * 1.212) / 0.8)
