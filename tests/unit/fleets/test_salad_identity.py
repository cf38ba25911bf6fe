"""Whose tokens are taken, and for how long."""

import base64
import hmac
import json
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.fixtures.contexts import START_MS, ManualClock
from tests.fixtures.salad_cloud import SaladCloud
from tests.fixtures.salad_imds import ORGANIZATION_ID, SaladKeys, SaladWorkload, public_jwk, signing_key
from tests.fixtures.salad_rented import Rented

from giornata.control.ports.identities import WorkloadIdentities
from giornata.domain.errors import Unauthenticated, Unavailable
from giornata.fleets.opening import identities_of
from giornata.fleets.salad import SaladOptions, open_identities

SOME: dict[str, Any] = {"organization": "acme", "project": "loras", "image": "i", "gpu_classes": ["g"]}


@dataclass(frozen=True)
class IdentityFleet:
    """What a server has of a fleet here."""

    identities: WorkloadIdentities | None


class IdentitySetup:
    """A server that takes tokens of the group `loras` for its fleet `night`, and a container in that group."""

    def __init__(self, **options: Any) -> None:
        self.clock, self.keys = ManualClock(START_MS), SaladKeys()
        self.workload = SaladWorkload(keys=self.keys, now_s=START_MS / 1000)
        fleets = {
            "night": SaladOptions(**SOME, group="loras", organization_id=ORGANIZATION_ID, **options),
            "keyed": SaladOptions(**SOME, group="other"),
        }
        self.identities = open_identities(
            fleets, now_ms=self.clock.now_ms, transport=httpx.MockTransport(self.keys.answer)
        )

    def refuses(self, token: str) -> bool:
        try:
            self.identities.recognize(token)
        except Unauthenticated:
            return True
        return False


def test_a_token_says_machine_fleet_and_how_long():
    world = IdentitySetup()
    found = world.identities.recognize(world.workload.token())
    assert (found.fleet, found.machine_id) == ("night", world.workload.machine_id)
    assert found.expires_at_ms == (START_MS // 1000 + 300) * 1000, "tokens say whole seconds"


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "11111111-2222-3333-4444-555555555555"},
        {"aud": None},
        {"salad_workload_name": "other"},
        {"salad_workload_name": None},
        {"salad_machine_id": None},
        {"salad_machine_id": "another-machine"},
        {"salad_machine_id": 7, "sub": "7"},
        {"sub": None},
        {"exp": None},
        {"exp": START_MS // 1000 - 11},
        {"nbf": START_MS // 1000 + 11},
        {"exp": "soon"},
    ],
    ids=str,
)
def test_d101_token_for_another_installation_or_time_is_refused(changed):
    world = IdentitySetup()
    assert world.refuses(world.workload.token(**changed))
    assert not world.refuses(world.workload.token())


@pytest.mark.parametrize(
    "changed", [{"exp": START_MS // 1000 - 9}, {"nbf": START_MS // 1000 + 9}, {"iat": None, "nbf": None}]
)
def test_clocks_may_differ_a_little(changed):
    world = IdentitySetup()
    assert not world.refuses(world.workload.token(**changed))


def test_d101_a_group_of_the_same_name_elsewhere_is_another_group_once_its_id_is_known():
    strict = IdentitySetup(group_id="5ed00433-ff49-5244-a49a-94e2a7b2bd3b")
    assert strict.refuses(strict.workload.token(salad_workload_id="00000000-0000-0000-0000-000000000000"))
    strict.workload.group_id = "5ed00433-ff49-5244-a49a-94e2a7b2bd3b"
    assert not strict.refuses(strict.workload.token())


@pytest.mark.parametrize("group", ["loras-group-2", "loras-group-20"])
def test_nodes_in_further_groups_of_the_fleet_are_its_own(group):
    world = IdentitySetup()
    found = world.identities.recognize(world.workload.token(salad_workload_name=group))
    assert (found.fleet, found.machine_id) == ("night", world.workload.machine_id)


@pytest.mark.parametrize("group", ["loras-group-1", "loras-group-21", "loras-2", "other-loras-group-2", ["loras"], 2])
def test_d101_a_group_of_another_name_is_not_the_fleets(group):
    world = IdentitySetup()
    assert world.refuses(world.workload.token(salad_workload_name=group))


def test_d101_an_issuer_that_is_asked_for_has_to_be_there():
    strict = IdentitySetup(issuer="https://salad.example")
    assert strict.refuses(strict.workload.token())
    assert strict.refuses(strict.workload.token(iss="https://else.example"))
    assert not strict.refuses(strict.workload.token(iss="https://salad.example"))


def test_a_token_signed_by_somebody_else_is_refused():
    world = IdentitySetup()
    claims = world.workload.claims()
    forged = jwt.encode(claims, signing_key("forger"), algorithm="RS256", headers={"kid": "key-2"})
    assert world.refuses(forged)
    unsigned = jwt.encode(claims, None, algorithm="none", headers={"kid": "key-2"})
    assert world.refuses(unsigned)


def test_the_public_key_signs_nothing():
    world = IdentitySetup()
    # By hand: the library refuses to sign with what is plainly a public key.
    secret = signing_key("key-2").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = [{"alg": "HS256", "typ": "JWT", "kid": "key-2"}, world.workload.claims()]
    signed = b".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed, "sha256")).rstrip(b"=")
    assert world.refuses((signed + b"." + signature).decode())


def test_a_key_set_with_a_secret_in_it_makes_no_secret_of_it():
    world = IdentitySetup()
    secret = {"kty": "oct", "kid": "key-9", "k": base64.urlsafe_b64encode(b"s" * 32).decode().rstrip("=")}
    rows = {"keys": [secret, {"kty": "odd", "kid": "x"}, {"kid": "y"}, public_jwk("key-2")]}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=rows))
    fleets = {"night": SaladOptions(**SOME, group="loras", organization_id=ORGANIZATION_ID)}
    identities = open_identities(fleets, now_ms=world.clock.now_ms, transport=transport)
    forged = jwt.encode(world.workload.claims(), b"s" * 32, algorithm="HS256", headers={"kid": "key-9"})
    with pytest.raises(Unauthenticated):
        identities.recognize(forged)
    assert identities.recognize(world.workload.token(kid="key-2")).fleet == "night", "those beside it are good"


@pytest.mark.parametrize("token", ["", "a.b.c", "gk_00000000_x", "e30.e30.e30", "....", "é.é.é"])
def test_malformed_identity_token_is_refused_without_fetching_keys(token):
    world = IdentitySetup()
    assert world.refuses(token)
    assert world.keys.fetched == 0


def test_d100_keys_are_fetched_once_for_many_tokens():
    world = IdentitySetup()
    for kid in ("key-1", "key-2") * 20:
        world.identities.recognize(world.workload.token(kid=kid))
    assert world.keys.fetched == 1


def test_keys_that_were_replaced_are_found():
    world = IdentitySetup()
    world.identities.recognize(world.workload.token())
    world.keys.rotate("key-3")
    world.clock.advance_s(61)
    world.workload.now_s += 61
    assert not world.refuses(world.workload.token())
    assert world.keys.fetched == 2
    old = world.workload.token(kid="key-1")
    world.clock.advance_s(61)
    assert world.refuses(old), "the key that went is no longer good"


def test_unknown_keys_make_one_request_a_minute_at_most():
    world = IdentitySetup()
    world.identities.recognize(world.workload.token())
    world.clock.advance_s(61)
    for number in range(50):
        try:
            world.identities.recognize(world.workload.token(kid="forger", jti=str(number)))
        except (Unauthenticated, Unavailable):
            continue
        raise AssertionError("an unknown key is good for nothing")
    assert world.keys.fetched == 2
    assert not world.refuses(world.workload.token()), "others are not disturbed"


def test_keys_are_fetched_again_every_hour_and_old_ones_do_while_they_cannot_be_had():
    world = IdentitySetup()
    world.identities.recognize(world.workload.token())
    world.clock.advance_s(3601)
    world.workload.now_s += 3601
    world.keys.away = True
    assert not world.refuses(world.workload.token())
    world.keys.away = False
    world.clock.advance_s(61)
    assert not world.refuses(world.workload.token())
    assert world.keys.fetched == 3


@pytest.mark.parametrize("trouble", [{"away": True}, {"status": 500}, {"kids": []}])
def test_identity_token_is_unavailable_and_not_refused_when_keys_cannot_be_fetched(trouble):
    world = IdentitySetup()
    token = world.workload.token()
    for name, value in trouble.items():
        setattr(world.keys, name, value)
    with pytest.raises(Unavailable):
        world.identities.recognize(token)


def test_d102_a_token_is_never_good_for_longer_than_it_says_nor_for_ever():
    world = IdentitySetup()
    found = world.identities.recognize(world.workload.token(exp=START_MS // 1000 + 10**9))
    assert found.expires_at_ms == START_MS + 3_600_000


def test_a_server_takes_the_tokens_of_all_its_fleets_that_have_any():
    world = IdentitySetup()
    other = open_identities(
        {"day": SaladOptions(**SOME, group="daylight", organization_id=ORGANIZATION_ID)},
        now_ms=world.clock.now_ms,
        transport=httpx.MockTransport(world.keys.answer),
    )
    both = identities_of([IdentityFleet(other), object(), IdentityFleet(None), IdentityFleet(world.identities)])
    assert both.recognize(world.workload.token()).fleet == "night"
    assert both.recognize(world.workload.token(salad_workload_name="daylight")).fleet == "day"
    with pytest.raises(Unauthenticated):
        both.recognize(world.workload.token(salad_workload_name="neither"))
    with pytest.raises(Unauthenticated, match="no fleet"):
        identities_of([object(), IdentityFleet(None)]).recognize(world.workload.token())


def test_a_provider_that_is_away_may_know_the_token():
    away, known = IdentitySetup(), IdentitySetup()
    away.keys.away = True
    both = identities_of([IdentityFleet(away.identities), IdentityFleet(known.identities)])
    assert both.recognize(known.workload.token()).fleet == "night"
    known.keys.rotate("key-9")
    with pytest.raises(Unavailable):
        both.recognize(known.workload.token(kid="forger"))


def test_an_opened_fleet_recognizes_its_nodes_when_it_knows_its_organization():
    rented = Rented(SaladCloud())
    assert rented.fleet(organization_id=ORGANIZATION_ID).identities is not None
    assert rented.fleet().identities is None


def test_groups_of_one_name_in_two_organizations_are_two_fleets():
    world, elsewhere = IdentitySetup(), "11111111-2222-3333-4444-555555555555"
    fleets = {
        "ours": SaladOptions(**SOME, group="loras", organization_id=ORGANIZATION_ID),
        "theirs": SaladOptions(**SOME, group="loras", organization_id=elsewhere),
    }
    transport = httpx.MockTransport(world.keys.answer)
    identities = open_identities(fleets, now_ms=world.clock.now_ms, transport=transport)
    assert identities.recognize(world.workload.token()).fleet == "ours"
    assert identities.recognize(world.workload.token(aud=elsewhere)).fleet == "theirs"
    assert identities.recognize(world.workload.token(aud=["else", elsewhere])).fleet == "theirs"
