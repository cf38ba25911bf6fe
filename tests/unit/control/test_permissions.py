"""Roles, scopes, and the text that a key's row keeps of its scopes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.control.access.permissions import (
    ROLE_SCOPES,
    read_scopes,
    require_write,
    stored_scopes,
    verbs_of,
)
from giornata.control.access.signing_in.sign_in import network_of
from giornata.control.caller import Caller
from giornata.domain.errors import Forbidden
from giornata.protocol.account.people import Role
from giornata.protocol.project.admin import USER_VERBS, Scope
from giornata.store.schema import keys

LONGEST = keys.c.scope.type.length


def test_each_role_reaches_all_that_the_one_before_reaches() -> None:
    assert set(ROLE_SCOPES) == set(Role)
    for lower, higher in pairwise(Role):
        assert ROLE_SCOPES[lower] < ROLE_SCOPES[higher]


def test_scopes_of_a_key_before_reach_what_they_did() -> None:
    assert Scope.MEMBER.reach == USER_VERBS
    assert Scope.ADMIN.reach == USER_VERBS | {Scope.ADMIN}
    assert Scope.NODE.reach == {Scope.NODE}


@given(st.sets(st.sampled_from(Scope), min_size=1))
def test_stored_text_of_scopes_is_read_as_the_same_verbs(scopes: set[Scope]) -> None:
    scopes -= {Scope.NODE}  # it goes with no other
    stored = stored_scopes(scopes) if scopes else Scope.NODE
    assert len(stored) <= LONGEST
    assert read_scopes(stored) == verbs_of(scopes or {Scope.NODE})


def test_order_takes_generate_and_another_job_takes_jobs_write() -> None:
    for scope, kind, other in ((Scope.GENERATE, "generate", "train"), (Scope.JOBS_WRITE, "x-count", "generate")):
        caller = Caller(project_id="ann", scopes=scope.reach, key_id="key_ann")
        require_write(caller, kind)
        with pytest.raises(Forbidden):
            require_write(caller, other)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_failures_are_counted_for_the_network_that_one_person_has(address: str, counted: str) -> None:
    assert network_of(address) == counted
