"""Every page, asked by every role and by strangers: who sees it, what it holds, and what it costs."""

from html.parser import HTMLParser

import httpx
import pytest
from tests.fixtures.dashboard import CLOSING, OTHER, PROJECT, SCRIPT, Furnished, pages_of
from tests.fixtures.people import Browser, browser_of

from giornata.dashboard.app import POLICY
from giornata.dashboard.job_pages.job_page import story
from giornata.protocol.jobs import Job

PEOPLE = ("operator", "owner", "member", "viewer", "stranger")
OWNERS_ONLY = {"webhooks", "deliveries", "audit-log"}
WRITERS_ONLY = {"train", "train-like", "generate", "generate-grid"}
ANYBODYS = {"components", "reference", "account"}


@pytest.fixture(scope="module")
def browsers(installation: Furnished) -> dict[str, Browser]:
    return {name: browser_of(installation.served, getattr(installation, name)) for name in PEOPLE}


def get(browser: Browser, path: str) -> httpx.Response:
    return browser.call("GET", path)


def may_see(person: str, page: str) -> bool:
    if page in ANYBODYS or person == "operator":
        return True
    if person == "stranger" or page.startswith("operator-"):
        return False
    if page in WRITERS_ONLY:
        return person in {"owner", "member"}
    return person == "owner" or page not in OWNERS_ONLY


@pytest.mark.parametrize("person", PEOPLE)
def test_a_person_sees_the_pages_of_the_own_role_and_a_404_for_every_other(
    installation: Furnished, browsers: dict[str, Browser], person: str
) -> None:
    for name, path in pages_of(installation).items():
        response = get(browsers[person], path)
        assert response.status_code == (200 if may_see(person, name) else 404), (person, name, response.text[:500])


def test_a_refused_page_says_the_same_as_one_that_is_not_there(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    stranger = browsers["stranger"]
    missing = get(stranger, f"/dashboard/projects/{OTHER}/jobs/job_none").text
    for path in (
        f"/dashboard/projects/{PROJECT}/jobs/{installation.done_job}",
        f"/dashboard/projects/{OTHER}/jobs/{installation.done_job}",
        "/dashboard/projects/nobodys/jobs",
        f"/dashboard/projects/{PROJECT}/settings/webhooks/{installation.webhook_id}",
    ):
        assert get(stranger, path).text == missing


def test_pages_of_another_project_name_nothing_of_this_one(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    for path in ("", "/jobs", "/fleet", "/settings", "/settings/keys", "/settings/webhooks"):
        text = get(browsers["stranger"], f"/dashboard/projects/{OTHER}{path}").text
        for secret in (
            installation.done_job,
            installation.running_job,
            "watercolor",
            "ann@example.com",
            PROJECT,
            "rtx-",
        ):
            assert secret not in text, (path, secret)


def test_a_picture_of_a_job_is_for_its_project_alone(installation: Furnished, browsers: dict[str, Browser]) -> None:
    path = f"/dashboard/projects/{PROJECT}/jobs/{installation.done_job}/pictures/fox-samples.png"
    own = get(browsers["viewer"], path)
    assert (own.status_code, own.headers["content-type"], own.content[:4]) == (200, "image/png", b"\x89PNG")
    assert get(browsers["stranger"], path).status_code == 404
    assert get(browsers["stranger"], path.replace(PROJECT, OTHER)).status_code == 404


def test_a_result_that_is_no_picture_is_not_sent_as_a_page(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    path = f"/dashboard/projects/{PROJECT}/jobs/{installation.done_job}/pictures/fox.safetensors"
    assert get(browsers["owner"], path).status_code == 404


def test_every_reply_has_the_policy_and_no_page_is_kept(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    paths = [
        *pages_of(installation).values(),
        "/dashboard/sign-in",
        "/dashboard/nothing",
        "/dashboard/static/theme.js",
    ]
    for path in paths:
        response = get(browsers["operator"], path)
        assert response.headers["content-security-policy"] == POLICY, path
        assert response.headers["x-content-type-options"] == "nosniff", path
        if "/static/" not in path:
            assert response.headers["cache-control"] == "no-store", path
    assert POLICY.startswith("default-src 'self'")
    assert "unsafe" not in POLICY


class _PolicyParser(HTMLParser):
    """Notes what a policy would refuse, and every id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._in_script = tag in {"script", "style"}
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name.startswith(("on", "hx-on"))]
        self.inline += [tag] if tag == "style" or (tag == "script" and "src" not in given) else []
        self.ids += [given["id"] or ""] if "id" in given else []
        for name in ("src", "href", "action", "hx-get"):
            if (given.get(name) or "").startswith(("http:", "https:", "//", "javascript:", "data:")):
                self.outside.append(f"{tag} {name}={given[name]}")


def test_no_page_holds_an_inline_script_or_style_or_an_id_twice(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    for name, path in pages_of(installation).items():
        found = _PolicyParser(get(browsers["owner"] if name not in OWNERS_ONLY else browsers["operator"], path).text)
        assert found.inline == [], name
        assert len(found.ids) == len(set(found.ids)), (name, found.ids)
        outside = [each for each in found.outside if "/v1/blobs/" not in each]  # signed links to download
        assert outside == [], name


def test_name_given_by_a_tenant_is_never_markup(installation: Furnished, browsers: dict[str, Browser]) -> None:
    seen = 0
    for name, path in pages_of(installation).items():
        for person in ("operator", "owner"):
            text = get(browsers[person], path).text
            assert SCRIPT not in text, name
            assert "<script>" not in text, name
            assert CLOSING not in text, name
            seen += text.count("&lt;img") + text.count("&lt;script")
    assert seen > 20  # the texts are there, escaped


def test_a_person_without_a_session_is_led_to_the_sign_in_and_back(installation: Furnished) -> None:
    for name, path in pages_of(installation).items():
        response = installation.served.call("GET", path, None)
        assert response.status_code == 303, name
        assert response.headers["location"].startswith("/dashboard/sign-in?next=%2Fdashboard%2F"), name


def test_a_fragment_without_a_session_leads_the_whole_page_to_the_sign_in(installation: Furnished) -> None:
    response = installation.served.call(
        "GET", pages_of(installation)["job-files"], None, headers={"HX-Request": "true"}
    )
    assert (response.status_code, response.headers["hx-redirect"]) == (401, "/dashboard/sign-in")


def test_buttons_that_a_person_may_not_press_are_not_there(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    path = pages_of(installation)["job-running"]
    for person, sees in (("owner", True), ("member", True), ("viewer", False), ("operator", True)):
        assert (f"{installation.running_job}/cancel" in get(browsers[person], path).text) is sees, person
    jobs = pages_of(installation)["jobs"]
    assert "Cancel the chosen" in get(browsers["member"], jobs).text
    assert "Cancel the chosen" not in get(browsers["viewer"], jobs).text
    home = pages_of(installation)["home"]
    assert 'id="drop"' in get(browsers["member"], home).text
    assert 'id="drop"' not in get(browsers["viewer"], home).text
    assert "Invite a person" in get(browsers["owner"], pages_of(installation)["project"]).text
    assert "Invite a person" not in get(browsers["member"], pages_of(installation)["project"]).text


def test_the_job_page_says_what_became_of_lost_machines_and_why_a_job_waits(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    assert (
        "2 machines lost, 8 s of work done again, no step missing."
        in get(browsers["owner"], pages_of(installation)["job"]).text
    )
    assert "It waits:" in get(browsers["owner"], pages_of(installation)["job-waiting"]).text
    assert "IMG_0042.jpg is no picture" in get(browsers["owner"], pages_of(installation)["job-failed"]).text


def test_job_that_did_no_work_again_lost_machines_and_nothing_else(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    found = browsers["owner"].call("GET", f"/v1/jobs/{installation.done_job}", headers={"X-Project": PROJECT}).json()
    assert story(Job.model_validate({**found, "lost_s": 0.0})) == "2 machines lost, nothing lost."
    assert story(Job.model_validate({**found, "interruptions": 0})) == ""


def test_samples_are_listed_by_ascending_steps_and_the_end_last(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    text = get(browsers["owner"], pages_of(installation)["job-pictures"]).text
    steps = [part.partition('"')[0] for part in text.split('data-step="')[1:]]
    assert steps == ["350", "end"]


def test_jobs_are_filtered_searched_and_paged(installation: Furnished, browsers: dict[str, Browser]) -> None:
    path = pages_of(installation)["jobs"]

    def names(query: str) -> list[str]:
        text = get(browsers["owner"], f"{path}?{query}").text
        ids = {
            installation.done_job,
            installation.running_job,
            installation.waiting_job,
            installation.failed_job,
            installation.hostile_job,
        }
        return sorted(each for each in ids if f"jobs/{each}" in text)

    assert names("state=succeeded") == [installation.done_job]
    assert names("state=active") == sorted([installation.running_job, installation.waiting_job])
    assert names("match=watercolor+style") == names("match=COLOR") == [installation.running_job]
    assert names(f"match={installation.done_job[:-1]}") == [installation.done_job]
    assert names("match=no+such+name") == []
    assert names("label=customer%3A42") == [installation.done_job]
    assert names("kind=generate") == []


def test_a_filter_that_is_of_no_use_is_said_beside_its_field_and_kept(
    installation: Furnished, browsers: dict[str, Browser]
) -> None:
    response = get(browsers["owner"], f"{pages_of(installation)['jobs']}?label=abc&state=asleep")
    assert response.status_code == 400
    assert 'value="abc"' in response.text
    assert 'id="label-fault"' in response.text
    assert 'id="state-fault"' in response.text
