"""Quotas as rules: what fits, what is refused, and which models a pattern means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.billing.quotas import (
    ModelIdentity,
    QuotaRequest,
    Quotas,
    QuotaStanding,
    QuotaUse,
    day_start_ms,
    is_allowed,
    over_quota,
    refusal_of,
    with_request,
)
from giornata.domain.errors import Fault, InvalidInput, OverQuota, QuotaFault

HASH = "a" * 64
DAY_MS = 86_400_000
amounts = st.integers(0, 50)


@given(
    most=amounts,
    asked=st.lists(st.builds(QuotaRequest, jobs=st.just(1), pictures=amounts, orders=st.integers(0, 1)), max_size=30),
)
def test_requests_that_are_granted_one_by_one_stay_within_all_limits(most: int, asked: list[QuotaRequest]) -> None:
    quotas = Quotas(
        max_queued_jobs=most, max_pictures_per_day=2 * most, max_stored_bytes=1000, max_open_orders=most // 2
    )
    standing = QuotaStanding(quotas=quotas, use=QuotaUse(at_ms=0))
    for each in asked:
        if not list(over_quota(standing, each)):
            standing = with_request(standing, each)
    assert standing.use.queued_jobs <= most
    assert standing.use.pictures_today <= 2 * most
    assert standing.use.open_orders <= most // 2


@given(st.builds(QuotaRequest, jobs=amounts, pictures=amounts, stored_bytes=amounts), amounts)
def test_request_without_limits_is_accepted(asked: QuotaRequest, used: int) -> None:
    use = QuotaUse(at_ms=0, queued_jobs=used, pictures_today=used, stored_bytes=used)
    assert not list(over_quota(QuotaStanding(use=use), asked))


def test_pictures_are_free_again_at_midnight_unless_there_are_never_so_many() -> None:
    standing = QuotaStanding(quotas=Quotas(max_pictures_per_day=5), use=QuotaUse(at_ms=DAY_MS + 7, pictures_today=4))
    asked = {number: QuotaRequest(jobs=1, pictures=number) for number in (2, 6)}
    free = {number: next(iter(over_quota(standing, each))).free_at_ms for number, each in asked.items()}
    assert free == {2: 2 * DAY_MS, 6: None}


@given(st.integers(0, 2**42))
def test_day_holds_its_instant(at_ms: int) -> None:
    assert day_start_ms(at_ms) <= at_ms < day_start_ms(at_ms, days=1)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("stabilityai/*", True),
        ("stabilityai/sdxl", True),
        ("stabilityai/sd?l", False),
        ("sdxl", False),
        ("*", True),
        (f"sha256:{HASH}", True),
        ("sha256:*", False),
        ("family:sdxl", True),
        ("family:sd15", False),
        ("source:hub", True),
        ("source:", False),
    ],
)
def test_pattern_means_a_name_or_one_field(pattern: str, fits: bool) -> None:
    model = ModelIdentity(names=("stabilityai/sdxl",), sha256=HASH, family="sdxl", source="hub")
    assert is_allowed((pattern,), model) is fits


def test_empty_list_allows_nothing_and_no_list_everything() -> None:
    model = ModelIdentity(names=("a",))
    assert (is_allowed((), model), is_allowed(None, model)) == (False, True)


def test_question_mark_of_a_url_stands_for_itself() -> None:
    model = ModelIdentity(names=("https://example.org/a?b=[1]",))
    assert is_allowed(("https://example.org/a?b=[1]",), model)
    assert not is_allowed(("https://example.org/a?b=1",), model)


def test_only_faults_of_quotas_are_a_refusal_by_quota() -> None:
    quota, other = QuotaFault(where="project", message="m", quota="queued_jobs"), Fault(where="spec", message="m")
    assert isinstance(refusal_of([quota]), OverQuota)
    for faults in ([other], [quota, other]):
        assert type(refusal_of(faults)) is InvalidInput
