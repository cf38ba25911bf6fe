"""The settings of an OpenID provider: what the server makes of them, and what it refuses at its start."""

from pathlib import Path

import pytest
from tests.fixtures.openid import CLIENT_ID, CLIENT_SECRET, providing

from giornata.cli.operate.composition import open_control_plane, policy_of
from giornata.cli.settings import Settings, oidc_client_secret_of
from giornata.control.ports.identity_provider import AuthorizationRequest
from giornata.domain.errors import InvalidInput, NotFound, Unavailable

ASKED = AuthorizationRequest(state="s", nonce="n", code_verifier="v" * 43, redirect_uri="http://here.example/back")


def authorization_url(data: Path, **settings: object) -> str:
    made = Settings.model_validate({"data": data, **settings})
    with open_control_plane(made, base_url=lambda: "http://here.example") as opened:
        return opened.context.identity_provider.authorization_url(ASKED)


def test_provider_in_an_own_network_is_asked_only_where_the_network_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{CLIENT_SECRET}\n")
    with providing() as provider:
        given = {"oidc_issuer": provider.url, "oidc_client_id": CLIENT_ID}
        with pytest.raises(Unavailable):
            authorization_url(tmp_path / "one", **given)
        file, networks = tmp_path / "secret", ["127.0.0.0/8"]
        url = authorization_url(tmp_path / "two", **given, oidc_networks=networks, oidc_client_secret_file=file)
    assert url.startswith(f"{provider.url}/authorize?")


def test_server_without_the_settings_has_no_provider(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        authorization_url(tmp_path / "data")


def test_settings_of_a_provider_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as told:
        authorization_url(tmp_path / "one", oidc_issuer="accounts.example.com", oidc_scopes=["email"])
    assert [fault.where for fault in told.value.faults] == ["oidc_issuer", "oidc_client_id", "oidc_scopes"]
    with pytest.raises(InvalidInput, match="oidc_issuer"):
        authorization_url(tmp_path / "two", oidc_client_id="giornata")


def test_secret_comes_from_the_setting_or_from_its_file_and_never_from_both(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for wrong in (
        Settings(oidc_client_secret="x", oidc_client_secret_file=file),
        Settings(oidc_client_secret_file=file),
    ):
        with pytest.raises(InvalidInput, match="oidc_client_secret_file"):
            oidc_client_secret_of(wrong)
    file.write_text(" \n")
    with pytest.raises(InvalidInput, match="is empty"):
        oidc_client_secret_of(Settings(oidc_client_secret_file=file))
    file.write_text("hidden\n")
    assert oidc_client_secret_of(Settings(oidc_client_secret_file=file)) == "hidden"
    assert oidc_client_secret_of(Settings(oidc_client_secret="plain")) == "plain"


def test_policy_has_the_domains_of_the_settings() -> None:
    policy = policy_of(Settings(oidc_email_domains=("example.com",), oidc_unverified_email=True))
    assert (policy.email_domains, policy.unverified_email) == (("example.com",), True)
