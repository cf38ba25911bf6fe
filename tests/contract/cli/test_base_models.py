"""Base models that cannot be had are refused before a job is sent, where that can be known."""

from collections.abc import Callable

import httpx
import pytest

from giornata.cli.jobs.inputs.base_models import Hub, model_faults, sent_name
from giornata.control.jobs.submission.spec_faults import parse_spec

MISSING = {"x-error-code": "RepoNotFound"}
KNOWN = {"stabilityai/stable-diffusion-xl-base-1.0", "owner/name", "owner/vae"}


def answer(request: httpx.Request) -> httpx.Response:
    """As the hub answers: 401 to strangers for what is not there, or not theirs to see."""
    name, _, revision = request.url.path.removeprefix("/api/models/").partition("/revision/")
    if name not in KNOWN:
        return httpx.Response(404 if "authorization" in request.headers else 401, headers=MISSING)
    if revision not in {"", "main"}:
        return httpx.Response(404, headers={"x-error-code": "RevisionNotFound"})
    return httpx.Response(200, json={})


def faults(
    spec: dict,
    tmp_path,
    *,
    shares_files: bool = True,
    answers: Callable[[httpx.Request], httpx.Response] = answer,
    **environment: str,
) -> list[tuple[str, str, str]]:
    around = {"HF_HOME": str(tmp_path / "hugging face"), **environment}
    with httpx.Client(transport=httpx.MockTransport(answers)) as http:
        hub = Hub(environment=around, http=http)
        found = list(model_faults(spec, hub=hub, shares_files=lambda: shares_files))
    return [(fault.where, fault.message, fault.hint) for fault in found]


def refuses_to_answer(_request: httpx.Request) -> httpx.Response:
    raise AssertionError("the hub was asked")


def is_away(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no route")


@pytest.mark.parametrize("name", ["./missing-model", "../missing", "~/models/sdxl", ".", "models/sdxl/base"])
def test_a_folder_that_is_not_here_is_refused_wherever_the_server_is(tmp_path, monkeypatch, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    found = faults({"model": name}, tmp_path, shares_files=False, answers=refuses_to_answer)
    if name == ".":
        assert found == []
        return
    ((where, message, _),) = found
    assert (where, f"{name} does not exist here" in message) == ("--model", True)


def test_an_absolute_path_is_refused_where_nodes_see_the_same_files(tmp_path):
    name = str(tmp_path / "missing")
    ((_, message, _),) = faults({"model": name}, tmp_path, shares_files=True, answers=refuses_to_answer)
    assert "on this machine" in message
    assert faults({"model": name}, tmp_path, shares_files=False, answers=refuses_to_answer) == []
    assert faults({"model": str(tmp_path)}, tmp_path, answers=refuses_to_answer) == []


def test_a_file_that_is_no_checkpoint_is_refused_and_one_that_is_gets_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model.ckpt", "model.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    ((_, message, _),) = faults({"model": "model.ckpt"}, tmp_path, answers=refuses_to_answer)
    assert "not a .safetensors file" in message
    assert sent_name("model.safetensors") == str(tmp_path / "model.safetensors")
    assert sent_name("owner/name") == "owner/name"


def test_a_name_that_the_hub_does_not_know_is_refused_with_what_was_meant(tmp_path):
    ((where, message, hint),) = faults({"model": "stabilityai/stable-difusion-xl-base-1.0"}, tmp_path)
    assert (where, "the hub has no model" in message) == ("--model", True)
    assert "did you mean stabilityai/stable-diffusion-xl-base-1.0?" in hint
    assert "HF_HUB_OFFLINE=1" in hint
    assert faults({"model": "owner/name"}, tmp_path) == []
    assert faults({"model": "owner/name/file.safetensors"}, tmp_path) == []
    assert [each[0] for each in faults({"model": "no/name/file.safetensors"}, tmp_path)] == ["--model"]


def test_a_revision_and_another_vae_are_asked_for_too(tmp_path):
    ((_, message, _),) = faults({"model": "owner/name", "revision": "nope"}, tmp_path)
    assert "has no revision nope" in message
    assert faults({"model": "owner/name", "revision": "main", "vae": "owner/vae"}, tmp_path) == []
    assert [each[0] for each in faults({"model": "owner/name", "vae": "owner/vea"}, tmp_path)] == ["--set vae"]


def test_base_model_check_is_left_to_node_when_hub_is_away_offline_cached_or_secret_named(tmp_path):
    spec = {"model": "owner/private"}
    assert len(faults(spec, tmp_path)) == 1
    assert len(faults(spec, tmp_path, HF_TOKEN="hf_1")) == 1
    assert faults(spec, tmp_path, answers=is_away) == []
    assert faults(spec, tmp_path, answers=lambda _: httpx.Response(502)) == []
    assert faults(spec | {"hub_token_secret": "HUB"}, tmp_path, answers=refuses_to_answer) == []
    assert faults(spec, tmp_path, answers=refuses_to_answer, HF_HUB_OFFLINE="1") == []
    cached = tmp_path / "hugging face" / "hub" / "models--owner--private" / "snapshots"
    cached.mkdir(parents=True)
    assert faults(spec, tmp_path, answers=refuses_to_answer) == []


def test_the_hub_of_the_environment_is_asked_with_the_users_token(tmp_path):
    asked = []

    def remember(request: httpx.Request) -> httpx.Response:
        asked.append((str(request.url), request.headers.get("authorization")))
        return httpx.Response(200)

    (tmp_path / "hugging face").mkdir()
    (tmp_path / "hugging face" / "token").write_text("hf_saved\n")
    faults({"model": "owner/name"}, tmp_path, answers=remember, HF_ENDPOINT="https://mirror.example")
    assert asked == [("https://mirror.example/api/models/owner/name", "Bearer hf_saved")]


@pytest.mark.parametrize("name", ["stab ility/sdxl", "-", "owner/na--me", "owner/name.", "ö/name"])
def test_the_server_refuses_what_can_be_no_hub_id(name):
    _, found = parse_spec("train", {"model": name, "dataset": "ds_1", "instance_prompt": "a"})
    assert [fault.where for fault in found] == ["spec.pretrained_model_name_or_path"]


@pytest.mark.parametrize(
    "name", ["owner/name", "gpt2", "/models/sdxl", "./here", "C:\\models", "a/b/c.safetensors", "a/b/c"]
)
def test_the_server_takes_what_a_node_may_find(name):
    parsed, found = parse_spec("train", {"model": name, "dataset": "ds_1", "instance_prompt": "a"})
    assert parsed is not None and not found


def test_a_missing_model_is_refused_with_all_other_faults_and_nothing_is_sent(run, served, tmp_path):
    done = run("train", str(tmp_path / "none"), "--model", "./missing-model", "--set", "rank=0", "--json")
    assert done.status == 2
    said = [fault["where"] for fault in done.json["error"]["faults"]]
    assert {"--model", "spec.rank", str(tmp_path / "none")} <= set(said)
    assert list(served.ctx.blobs.list("")) == []
