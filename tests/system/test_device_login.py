"""`giornata login` against a server, both real processes, and a person who approves with a browser's requests."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
from tests.system.conftest import Up, until

from giornata.protocol.account.people import CreateInvitation, CreateUser, Role

PASSWORD = "a long sentence of hers"
EVE = "eve@example.com"


def command(up: Up, *words: str, key: str | None = None) -> subprocess.Popen[str]:
    """A command of somebody whose folders are `home`, apart from the server's."""
    home = up.data.parent / "home"
    around = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
    around |= {"XDG_CONFIG_HOME": str(home / "config"), "XDG_DATA_HOME": str(home / "data"), "PYTHONUNBUFFERED": "1"}
    around |= {} if key is None else {"GIORNATA_API_KEY": key}
    return subprocess.Popen(
        [sys.executable, "-m", "giornata", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=around,
    )


def said(up: Up, *words: str) -> str:
    process = command(up, *words)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    return output


def refused(up: Up, *words: str) -> str:
    process = command(up, *words)
    output, errors = process.communicate(timeout=120)
    assert process.returncode != 0, output
    return errors


def approve(url: str, address: str, user_code: str) -> None:
    """Sign in on the page, type the code, read the question, click."""
    with httpx.Client(base_url=url, follow_redirects=True, headers={"Origin": url}, trust_env=False) as browser:
        page = browser.get(address, params={"user_code": user_code})
        assert page.url.path == "/dashboard/sign-in"
        form = {"email": EVE, "password": PASSWORD, "next": f"/device?user_code={user_code}"}
        page = browser.post("/dashboard/sign-in", data=form)
        token = re.search(r'name="csrf_token" value="([0-9a-f]+)"', page.text)
        assert token is not None, page.text
        form = {"csrf_token": token[1], "user_code": user_code}
        question = browser.post("/device", data=form)
        assert user_code in question.text
        done = browser.post("/device", data=form | {"decision": "approve", "project_id": "art"})
        assert "The device is signed in" in done.text


def test_person_logs_in_works_and_logs_out(start_up, tmp_path: Path) -> None:
    up = start_up("--nodes", "0")
    url = json.loads((up.data / "server.json").read_text())["url"]
    up.client.create_project("art")
    user = up.client.create_user(CreateUser.model_validate({"email": EVE, "password": PASSWORD}))
    up.client.set_member("art", user.id, Role.MEMBER)

    login = command(
        up, "login", url, "--scope", "jobs:read", "--scope", "generate", "--expires", "1d", "--no-browser"
    )
    assert login.stdout is not None
    told = re.search(r"Open (\S+) in a browser, and enter the code ([A-Z]{4}-[A-Z]{4})", login.stdout.readline())
    assert told is not None
    approve(url, told[1], told[2])
    output, errors = login.communicate(timeout=120)
    assert login.returncode == 0, output + errors
    assert f"signed in as {EVE}, with the scopes generate jobs:read" in output
    assert "project art" in output
    assert "gk_" not in output + errors

    file = tmp_path / "home" / "config" / "giornata" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    (saved,) = json.loads(file.read_text())["contexts"].values()
    who = json.loads(said(up, "whoami", "--json").splitlines()[-1])
    assert (who["user"]["email"], who["project_id"], who["scopes"]) == (EVE, "art", ["generate", "jobs:read"])

    made = json.loads(said(up, "key", "create", "--scope", "jobs:read", "--json").splitlines()[-1])
    assert made["scopes"] == ["jobs:read"]
    assert made["expires_at"] is not None
    assert "reach further than you" in refused(up, "key", "create", "--scope", "jobs:write")
    assert "reach further than you" in refused(up, "key", "create", "--scope", "admin")

    assert "its key has ended" in said(up, "logout")
    with httpx.Client(base_url=url, trust_env=False) as http:

        def status(secret: str) -> int:
            return http.get("/v1/me", headers={"Authorization": f"Bearer {secret}"}).status_code

        assert status(saved["api_key"]) == 401
        assert status(made["secret"]) == 200
        up.client.remove_member("art", user.id)
        until(lambda: status(made["secret"]) == 401, "the key of somebody who left to end", patience_s=5)
    assert "no server runs on" in refused(up, "jobs")


def test_person_joins_and_logs_out_with_the_key_of_the_invitation(start_up) -> None:
    up = start_up("--nodes", "0")
    url = json.loads((up.data / "server.json").read_text())["url"]
    secret = up.client.create_invitation(CreateInvitation(role=Role.VIEWER)).secret
    words = ["project", "join", f"{url}/invitation#{secret}", EVE]
    home = up.data.parent / "home"
    done = subprocess.run(
        [sys.executable, "-m", "giornata", *words],
        input=PASSWORD,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "XDG_CONFIG_HOME": str(home / "config"), "XDG_DATA_HOME": str(home / "data")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads(said(up, "key", "create", "--scope", "jobs:read", "--json").splitlines()[-1])
    assert made["scopes"] == ["jobs:read"]
    assert "its key has ended" in said(up, "logout")
