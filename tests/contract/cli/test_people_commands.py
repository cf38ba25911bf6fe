"""`giornata project …`, `user …`, `key rotate` and `whoami`, as people use them."""

import json
from dataclasses import replace

import pytest
from tests.fixtures.notifier import KeptRuns
from tests.fixtures.openid import linked_identity
from tests.fixtures.people import PASSWORD, ROOT
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.cli.options import seconds_of
from giornata.control.access.members import set_member
from giornata.domain.errors import InvalidInput
from giornata.protocol.account.people import Role, SetMember


@pytest.fixture
def typed(served, tmp_path):
    """Run a command; the admin's key lies in the environment unless `key` says otherwise."""

    def call(*words, text=None, key=served.keys.admin, ok=True):
        around = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "home")}
        around |= {} if key is None else {"GIORNATA_URL": served.url, "GIORNATA_API_KEY": key}
        done = CliRunner().invoke(app, list(words), input=text, env=around)
        assert (done.exit_code == 0) is ok, done.output + done.stderr
        return done

    return call


def said(done):
    return json.loads(done.stdout)


def test_person_joins_by_a_link_and_works_with_an_own_key(typed, served):
    link = said(typed("project", "invite", "--role", "member", "--expires", "1d", "--json"))["link"]
    assert link.startswith(f"{served.url}/invitation#gi_")
    done = typed("project", "join", link, "eve@example.com", "--name", "Eve", text=PASSWORD + "\n", key=None)
    assert "joined default" in done.stdout
    assert PASSWORD not in done.stdout
    who = said(typed("whoami", "--json", key=None))
    assert (who["user"]["name"], who["project_id"]) == ("Eve", "default")
    assert who["scopes"] == ["datasets", "generate", "jobs:read", "jobs:write"]
    assert who["user"]["id"] in typed("key", "list").stdout
    assert "eve@example.com" in typed("project", "members", "default").stdout
    assert "used" in typed("project", "join", link, "kim@example.com", text=PASSWORD, key=None, ok=False).stderr
    typed("project", "remove", "default", who["user"]["id"])
    assert "unknown, revoked or expired" in typed("whoami", key=None, ok=False).stderr


def test_person_signs_in_with_a_password_and_gets_a_key(typed, served):
    typed("user", "create", "boss@example.com", "--operator", text=PASSWORD)
    done = typed("login", served.url, "--email", "boss@example.com", text=PASSWORD, key=None)
    assert "logged in" in done.stdout
    assert said(typed("whoami", "--json", key=None))["operator"]
    user = said(typed("user", "list", "--json", key=None))["items"][0]
    typed("user", "change", user["id"], "--password", text="another long sentence")
    typed("login", served.url, "--email", "boss@example.com", text="another long sentence", key=None)
    assert "inactive" in typed("user", "change", user["id"], "--inactive").stdout
    typed("jobs", key=None, ok=False)
    wrong = typed("login", served.url, "--email", "boss@example.com", text=PASSWORD, key=None, ok=False)
    assert "password is wrong" in wrong.stderr


def test_role_is_changed_and_an_invitation_taken_back(typed):
    typed("project", "create", "art")
    user = said(typed("user", "create", "eve@example.com", "--json", text=PASSWORD))
    assert "owner in art" in typed("project", "role", "art", user["id"], "owner").stdout
    assert said(typed("project", "members", "art", "--json"))["items"][0]["role"] == "owner"
    made = said(typed("project", "invite", "--json"))
    assert "revoked" in typed("project", "uninvite", made["id"]).stdout
    assert "revoked" in typed("project", "invitations").stdout


def test_key_has_scopes_an_end_and_another_secret(typed, served):
    words = ("key", "create", "--scope", "jobs:read", "--scope", "generate", "--expires", "90d", "--json")
    made = said(typed(*words))
    assert made["scopes"] == ["generate", "jobs:read"]
    assert made["expires_at"]
    rotated = said(typed("key", "rotate", made["id"], "--overlap", "0s", "--json"))
    assert rotated["secret"] != made["secret"]
    assert served.call("GET", "/v1/me", made["secret"]).status_code == 401
    assert served.call("GET", "/v1/me", rotated["secret"]).status_code == 200
    assert "expires" in typed("key", "list").stdout


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("key", "create", "--expires", "soon"), "--expires"),
        (("key", "rotate", "key_1", "--overlap", "99d"), "--overlap"),
        (("project", "invite", "--expires", "1s"), "--expires"),
        (("project", "join", "https://example.com", "eve@example.com"), "LINK"),
        (("user", "change", "user_1"), "options"),
        (("user", "create", "no-address"), "ADDRESS"),
    ],
)
def test_mistake_is_told_by_its_option_before_a_request(typed, words, where):
    assert where in typed(*words, text=PASSWORD, ok=False).stderr


def test_time_is_read_with_its_unit():
    assert [seconds_of(text, where="") for text in ("5s", "2m", "3h", "1d")] == [5, 120, 10_800, 86_400]
    for text in ("5", "d", "-1d", "1.5h", "1w"):
        with pytest.raises(InvalidInput):
            seconds_of(text, where="--expires")


def test_person_lists_and_unlinks_accounts_of_the_provider(typed, served):
    typed("user", "create", "boss@example.com", text=PASSWORD)
    user = said(typed("user", "list", "--json"))["items"][0]
    set_member(served.ctx, ROOT, "default", user["id"], SetMember(role=Role.MEMBER))
    typed("login", served.url, "--email", "boss@example.com", text=PASSWORD, key=None)
    first, second = (linked_identity(served.ctx, user["id"], subject=name) for name in ("one", "two"))
    shown = typed("identity", "list", key=None).stdout
    assert first in shown and second in shown and "You have a password" in shown
    assert "unlinked" in typed("identity", "unlink", first, key=None).stdout
    assert [each["id"] for each in said(typed("identity", "list", "--json", key=None))["items"]] == [second]
    assert "there is no linked account" in typed("identity", "unlink", first, key=None, ok=False).stderr
    plain = said(typed("key", "create", "--scope", "jobs:read", "--json", key=None))["secret"]
    assert "this takes a person" in typed("identity", "unlink", second, key=plain, ok=False).stderr


def test_person_sets_the_mails_about_own_jobs(typed, served):
    served.app.state.context = replace(served.ctx, notifier=KeptRuns())
    typed("user", "create", "boss@example.com", text=PASSWORD)
    user = said(typed("user", "list", "--json"))["items"][0]
    set_member(served.ctx, ROOT, "default", user["id"], SetMember(role=Role.MEMBER))
    typed("login", served.url, "--email", "boss@example.com", text=PASSWORD, key=None)
    assert "no mails about your jobs" in typed("notifications", key=None).stdout
    set_to = typed("notifications", "failures", "--daily-digest", key=None).stdout
    assert "mails to boss@example.com about your jobs that fail" in set_to and "once a day" in set_to
    assert said(typed("notifications", "--json", key=None))["jobs"] == "failures"
    assert "no mails" in typed("notifications", "none", key=None).stdout
