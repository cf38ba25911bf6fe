"""What is asked of an OpenID provider, and which of its answers are believed."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from ipaddress import ip_network
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.fixtures.openid import CLIENT_ID, CLIENT_SECRET, EVE, SECOND_KEY, OpenIdServer, client_of, providing

from giornata.control.ports.identity_provider import AuthorizationRequest, ProviderIdentity
from giornata.domain.errors import InvalidInput, Unauthenticated, Unavailable
from giornata.outbound.oidc_provider import KEPT_MS, KEYS_AGAIN_AFTER_MS, OidcProvider, oidc_client
from giornata.outbound.public_addresses import AddressRule

ASKED = AuthorizationRequest(
    state="a state", nonce="a nonce", code_verifier="v" * 43, redirect_uri="http://here.example/sign-in/callback"
)

AN_HOUR_AGO, IN_AN_HOUR = "an hour ago", "in an hour"


@pytest.fixture
def provider() -> Iterator[OpenIdServer]:
    with providing() as running:
        yield running


def code_of(provider: OpenIdServer, client: OidcProvider, asked: AuthorizationRequest = ASKED) -> str:
    back = parse_qs(urlsplit(provider.sign_in(client.authorization_url(asked))).query)
    assert back["state"] == [asked.state]
    return back["code"][0]


def identity(
    provider: OpenIdServer, client: OidcProvider, asked: AuthorizationRequest = ASKED, at_ms: int | None = None
) -> ProviderIdentity:
    now_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    return client.identity(asked, code_of(provider, client, asked), at_ms=now_ms)


def test_account_is_told_without_groups_and_roles(provider: OpenIdServer) -> None:
    provider.person |= {"groups": ["admin"], "role": "operator"}
    with client_of(provider) as client:
        found = identity(provider, client)
    assert found == ProviderIdentity(
        issuer=provider.url, subject=EVE["sub"], email=EVE["email"], email_verified=True, name=EVE["name"]
    )


def test_code_is_good_once_and_for_the_browser_that_began(provider: OpenIdServer) -> None:
    with client_of(provider) as client:
        code = code_of(provider, client)
        client.identity(ASKED, code, at_ms=time.time_ns() // 1_000_000)
        with pytest.raises(Unauthenticated):
            client.identity(ASKED, code, at_ms=time.time_ns() // 1_000_000)
        stolen, thief = (
            code_of(provider, client),
            AuthorizationRequest(
                state="a state", nonce="a nonce", code_verifier="w" * 43, redirect_uri=ASKED.redirect_uri
            ),
        )
        with pytest.raises(Unauthenticated):
            client.identity(thief, stolen, at_ms=time.time_ns() // 1_000_000)


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "somebody-else"},
        {"aud": "somebody-else", "azp": CLIENT_ID},
        {"aud": ["somebody-else", CLIENT_ID]},  # without azp
        {"aud": [CLIENT_ID, "somebody-else"], "azp": "somebody-else"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"exp": AN_HOUR_AGO},
        {"exp": None},
        {"iat": None},
        {"nbf": IN_AN_HOUR},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 256},
        {"sub": "a\x00b"},
        {"at_hash": "of another token"},
    ],
    ids=str,
)
def test_token_with_a_wrong_claim_is_refused(provider: OpenIdServer, claims: dict[str, object]) -> None:
    now_s = int(time.time())
    times = {AN_HOUR_AGO: now_s - 3600, IN_AN_HOUR: now_s + 3600}
    provider.claims = {claim: times.get(str(value), value) for claim, value in claims.items()}
    with client_of(provider) as client, pytest.raises(Unauthenticated):
        identity(provider, client)


def test_token_is_refused_after_its_end(provider: OpenIdServer) -> None:
    with client_of(provider) as client:
        now_ms = time.time_ns() // 1_000_000
        identity(provider, client, at_ms=now_ms)
        with pytest.raises(Unauthenticated):
            identity(provider, client, at_ms=now_ms + 3_600_000)


def _unsigned(provider: OpenIdServer) -> str:
    claims = provider.signed(ASKED.nonce).split(".")[1]
    return f"{_base64({'alg': 'none'})}.{claims}."


def _by_secret(provider: OpenIdServer, secret: bytes) -> str:
    """The token as somebody signs it who knows the secret, or the public key."""
    claims = provider.signed(ASKED.nonce).split(".")[1]
    text = f"{_base64({'alg': 'HS256', 'kid': 'first'})}.{claims}"
    mac = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _base64(head: dict[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(head).encode()).rstrip(b"=").decode()


def _by_another_key(provider: OpenIdServer) -> str:
    provider.key = SECOND_KEY
    return provider.signed(ASKED.nonce)


@pytest.mark.parametrize("lie", ["none", "client secret", "public key", "another key", "cut", "no token"])
def test_token_that_the_provider_did_not_sign_is_refused(provider: OpenIdServer, lie: str) -> None:
    provider.metadata = {"id_token_signing_alg_values_supported": ["RS256", "HS256", "none"]}
    provider.id_token = {
        "none": lambda: _unsigned(provider),
        "client secret": lambda: _by_secret(provider, CLIENT_SECRET.encode()),
        "public key": lambda: _by_secret(provider, provider.published[0].as_pem(private=False)),
        "another key": lambda: _by_another_key(provider),
        "cut": lambda: provider.signed(ASKED.nonce)[:-20],
        "no token": lambda: "nothing",
    }[lie]()
    with client_of(provider) as client, pytest.raises(Unauthenticated):
        identity(provider, client)


def test_algorithm_that_the_provider_does_not_list_is_refused(provider: OpenIdServer) -> None:
    provider.metadata = {"id_token_signing_alg_values_supported": ["ES256"]}
    with client_of(provider) as client, pytest.raises(Unauthenticated):
        identity(provider, client)
    provider.metadata = {"id_token_signing_alg_values_supported": ["HS256", "none"]}
    with client_of(provider) as client, pytest.raises(Unavailable):
        client.authorization_url(ASKED)


def test_metadata_and_keys_are_kept_and_new_keys_are_found(provider: OpenIdServer) -> None:
    clock_ms = [1_000_000_000]
    with client_of(provider, clock_ms=clock_ms) as client:
        identity(provider, client)
        identity(provider, client)
        assert (provider.asked.count("/keys"), provider.asked.count("/.well-known/openid-configuration")) == (1, 1)
        provider.key, provider.published = SECOND_KEY, [SECOND_KEY]
        with pytest.raises(Unauthenticated):
            identity(provider, client)
        assert provider.asked.count("/keys") == 1, "keys are asked for again after a while only"
        clock_ms[0] += KEYS_AGAIN_AFTER_MS
        assert identity(provider, client).subject == EVE["sub"]
        assert provider.asked.count("/keys") == 2
        clock_ms[0] += KEPT_MS
        identity(provider, client)
        assert (provider.asked.count("/keys"), provider.asked.count("/.well-known/openid-configuration")) == (3, 2)


def test_withdrawn_key_signs_no_more_once_the_keys_are_read_again(provider: OpenIdServer) -> None:
    clock_ms = [1_000_000_000]
    with client_of(provider, clock_ms=clock_ms) as client:
        identity(provider, client)
        provider.published = [SECOND_KEY]
        clock_ms[0] += KEPT_MS
        with pytest.raises(Unauthenticated):
            identity(provider, client)


def test_provider_that_is_down_is_told_apart_from_a_bad_answer(provider: OpenIdServer) -> None:
    with client_of(provider) as client:
        code = code_of(provider, client)
        provider.down = True
        with pytest.raises(Unavailable) as told:
            client.identity(ASKED, code, at_ms=time.time_ns() // 1_000_000)
        assert provider.url not in told.value.public
        provider.down = False
        assert identity(provider, client).subject == EVE["sub"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": 7},
    ],
    ids=str,
)
def test_metadata_that_are_not_the_issuers_are_refused(provider: OpenIdServer, metadata: dict[str, object]) -> None:
    provider.metadata = metadata
    with client_of(provider) as client, pytest.raises(Unavailable):
        client.authorization_url(ASKED)


def test_answer_without_an_end_is_cut_off(provider: OpenIdServer) -> None:
    provider.padding = 2**19
    with client_of(provider) as client, pytest.raises(Unavailable, match="too long"):
        client.authorization_url(ASKED)


def test_issuer_at_a_private_address_is_not_asked(provider: OpenIdServer) -> None:
    for rule in (AddressRule(), AddressRule(own_networks=(ip_network("10.0.0.0/8"),))):
        with client_of(provider, rule) as client, pytest.raises(Unavailable):
            client.authorization_url(ASKED)
    assert provider.asked == []


def test_endpoint_in_the_servers_own_network_is_not_asked(provider: OpenIdServer) -> None:
    provider.metadata = {"token_endpoint": "http://169.254.169.254/latest/meta-data", "jwks_uri": "http://[::1]/keys"}
    with client_of(provider) as client, pytest.raises(Unavailable):
        identity(provider, client)
    provider.metadata = {"jwks_uri": "http://10.0.0.1/keys"}
    with client_of(provider) as client, pytest.raises(Unavailable):
        identity(provider, client)


def test_code_verifier_is_not_in_the_address(provider: OpenIdServer) -> None:
    with client_of(provider) as client:
        url = httpx.URL(client.authorization_url(ASKED))
    assert ASKED.code_verifier not in str(url)
    assert url.params["code_challenge_method"] == "S256"
    assert (url.params["state"], url.params["nonce"]) == (ASKED.state, ASKED.nonce)


def test_settings_are_refused_with_every_fault() -> None:
    with pytest.raises(InvalidInput) as told:
        oidc_client("accounts.example.com", None, None, ("email",))
    assert [fault.where for fault in told.value.faults] == ["oidc_issuer", "oidc_client_id", "oidc_scopes"]
