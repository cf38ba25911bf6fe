"""The policy by which pictures go to nodes that hold their models."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from giornata.domain.generation.model_routing import (
    BaseChoice,
    BaseDemand,
    HeldBases,
    Holders,
    RoutingPolicy,
    Tier,
    choices,
    choose,
    is_relief,
    prefetch,
)

POLICY = RoutingPolicy(delay_s=20.0, relief_every=16, replicate_s=60.0)
NOW_MS = 1_000_000


@dataclass
class WaitingPictures:
    """PictureDemand by base: the seconds that the oldest has waited, the work, and the holders."""

    waited_s: dict[str, float]
    work_s: dict[str, float] = field(default_factory=dict)
    held: dict[str, Holders] = field(default_factory=dict)

    def of_base(self, base_key: str) -> BaseDemand | None:
        if base_key not in self.waited_s:
            return None
        oldest_at_ms = NOW_MS - round(self.waited_s[base_key] * 1000)
        return BaseDemand(base_key=base_key, oldest_at_ms=oldest_at_ms, work_s=self.work_s.get(base_key, 10.0))

    def by_turn(self) -> Iterator[BaseDemand]:
        found = [waiting for key in self.waited_s if (waiting := self.of_base(key)) is not None]
        yield from sorted(found, key=lambda each: each.oldest_at_ms)

    def holders(self, base_key: str) -> Holders:
        return self.held.get(base_key, Holders())


def chosen(held: HeldBases, demand: WaitingPictures, *, relief: bool = False) -> BaseChoice | None:
    return choose(held, demand, now_ms=NOW_MS, relief=relief, policy=POLICY)


def test_base_in_gpu_memory_goes_before_an_older_one_on_disk() -> None:
    demand = WaitingPictures(waited_s={"hot": 1, "old": 500})
    assert chosen(HeldBases(gpu=["hot"], disk=["old"]), demand) == BaseChoice(base_key="hot", tier=Tier.GPU)


def test_base_choice_of_two_in_gpu_memory_is_that_with_longest_wait() -> None:
    demand = WaitingPictures(waited_s={"a": 1, "b": 2})
    assert chosen(HeldBases(gpu=["a", "b"]), demand) == BaseChoice(base_key="b", tier=Tier.GPU)


@pytest.mark.parametrize(("waited_s", "taken"), [(19.9, False), (20.0, True)])
def test_base_that_another_node_has_in_gpu_memory_is_loaded_after_the_delay(waited_s: float, taken: bool) -> None:
    demand = WaitingPictures(waited_s={"a": waited_s}, held={"a": Holders(gpu=1, disk=3)})
    assert (chosen(HeldBases(disk=["a"]), demand) is not None) is taken


def test_base_that_no_node_holds_in_a_faster_tier_is_loaded_at_once() -> None:
    demand = WaitingPictures(waited_s={"a": 0}, held={"a": Holders(disk=3)})
    assert chosen(HeldBases(disk=["a"]), demand) == BaseChoice(base_key="a", tier=Tier.DISK)


def test_base_in_host_memory_is_left_to_a_gpu_but_not_to_a_disk() -> None:
    held = HeldBases(host=["a"], disk=["a"])
    on_disks = WaitingPictures(waited_s={"a": 0}, held={"a": Holders(host=1, disk=9)})
    on_a_gpu = WaitingPictures(waited_s={"a": 0}, held={"a": Holders(gpu=1, host=1)})
    assert chosen(held, on_disks) == BaseChoice(base_key="a", tier=Tier.HOST)
    assert chosen(held, on_a_gpu) is None


def test_base_in_host_memory_goes_before_an_older_one_on_disk() -> None:
    held = HeldBases(host=["near"], disk=["near", "old", "older"])
    demand = WaitingPictures(waited_s={"near": 1, "old": 500, "older": 501})
    found = [each.base_key for each in choices(held, demand, now_ms=NOW_MS, policy=POLICY)]
    assert found == ["near", "older", "old"]
    assert chosen(held, demand, relief=True) == BaseChoice(base_key="older", tier=Tier.DISK)


def test_base_that_would_have_to_be_fetched_first_is_never_chosen() -> None:
    assert chosen(HeldBases(fetching="a"), WaitingPictures(waited_s={"a": 900, "b": 900})) is None


def test_relief_takes_the_oldest_picture_though_the_node_could_draw_a_hot_one() -> None:
    demand = WaitingPictures(waited_s={"hot": 30, "old": 50}, held={"old": Holders(gpu=1)})
    held = HeldBases(gpu=["hot"], disk=["old"])
    assert chosen(held, demand, relief=True) == BaseChoice(base_key="old", tier=Tier.DISK)


def test_relief_changes_nothing_while_no_picture_has_waited_longer_than_the_delay() -> None:
    demand = WaitingPictures(waited_s={"hot": 1, "old": 19})
    assert chosen(HeldBases(gpu=["hot"], disk=["old"]), demand, relief=True) == BaseChoice(
        base_key="hot", tier=Tier.GPU
    )


def test_relief_claims_are_one_in_sixteen_and_stable_for_same_request_id() -> None:
    share = sum(is_relief(f"request-{number}", POLICY) for number in range(16_000)) / 16_000
    assert share == pytest.approx(1 / 16, rel=0.1)
    assert is_relief("request-7", POLICY) == is_relief("request-7", POLICY)


def test_base_that_nobody_holds_is_fetched_by_one_node_only() -> None:
    nobody = WaitingPictures(waited_s={"a": 0})
    somebody = WaitingPictures(waited_s={"a": 299}, held={"a": Holders(fetching=1)})
    assert prefetch(HeldBases(), nobody, now_ms=NOW_MS, policy=POLICY) == "a"
    assert prefetch(HeldBases(), somebody, now_ms=NOW_MS, policy=POLICY) is None


@pytest.mark.parametrize(("work_s", "wanted"), [(120.0, None), (121.0, "a")])
def test_base_is_fetched_again_when_its_holders_are_too_few_for_the_work(work_s: float, wanted: str | None) -> None:
    demand = WaitingPictures(waited_s={"a": 5}, work_s={"a": work_s}, held={"a": Holders(gpu=1, disk=1)})
    assert prefetch(HeldBases(), demand, now_ms=NOW_MS, policy=POLICY) == wanted


@pytest.mark.parametrize(("fetching", "wanted"), [(0, "a"), (1, None)])
def test_base_whose_holders_let_a_picture_wait_too_long_is_fetched_by_one_more(
    fetching: int, wanted: str | None
) -> None:
    demand = WaitingPictures(waited_s={"a": 300}, held={"a": Holders(gpu=3, fetching=fetching)})
    assert prefetch(HeldBases(), demand, now_ms=NOW_MS, policy=POLICY) == wanted


def test_base_whose_holders_have_too_much_work_is_loaded_without_a_delay() -> None:
    demand = WaitingPictures(waited_s={"a": 0}, work_s={"a": 61.0}, held={"a": Holders(gpu=1)})
    assert chosen(HeldBases(disk=["a"]), demand) == BaseChoice(base_key="a", tier=Tier.DISK)


def test_node_that_fetches_a_base_fetches_no_other() -> None:
    assert prefetch(HeldBases(fetching="b"), WaitingPictures(waited_s={"a": 0}), now_ms=NOW_MS, policy=POLICY) is None
