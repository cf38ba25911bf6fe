"""What a job begins with: its newest checkpoint that holds, its inputs, and what was cached."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.contract.agent.conftest import NodeFactory
from tests.contract.agent.counting import counted
from tests.contract.agent.fake_node_api import LOST, Answer, FakeNodeApi, cut, lease, problem

from giornata.agent.claiming import ExitCode


def test_a_job_goes_on_from_its_newest_checkpoint(api: FakeNodeApi, node: NodeFactory) -> None:
    resume = {"step": 12, "download": api.add_blob(counted(12))}
    api.leases = [lease(checkpoints=[resume])]
    node().run()
    assert api.artifacts == {"count.txt": counted(20)}
    assert min(point["step"] for body in api.bodies("metrics") for point in body["points"]) == 13


def test_a_checkpoint_that_does_not_hold_is_rejected_for_the_one_before(api: FakeNodeApi, node: NodeFactory) -> None:
    bad = {"step": 12, "download": api.add_blob(counted(12), served=b"x" * len(counted(12)))}
    good = {"step": 8, "download": api.add_blob(counted(8))}
    api.leases = [lease(checkpoints=[bad, good])]
    node().run()
    assert len(api.bodies("checkpoints/12/reject")) == 1
    assert api.artifacts == {"count.txt": counted(20)}
    assert min(point["step"] for body in api.bodies("metrics") for point in body["points"]) == 9


@pytest.mark.parametrize("answers", [[cut], [problem(503, "unavailable")], [problem(404, "not-found")]])
def test_job_continues_from_earlier_checkpoint_when_reject_call_fails(
    api: FakeNodeApi, node: NodeFactory, answers: list[Answer]
) -> None:
    """It may not be believed, or be refused: the node begins at the one before, and does not ask for ever."""
    bad = {"step": 12, "download": api.add_blob(counted(12), served=b"x" * len(counted(12)))}
    good = {"step": 8, "download": api.add_blob(counted(8))}
    api.leases = [lease(checkpoints=[bad, good])]
    api.answers["checkpoints/12/reject"] = list(answers)
    node().run()
    assert 1 <= len(api.bodies("checkpoints/12/reject")) <= 2
    assert api.artifacts == {"count.txt": counted(20)}
    assert min(point["step"] for body in api.bodies("metrics") for point in body["points"]) == 9


def picture(api: FakeNodeApi, content: bytes, **served: bytes) -> dict[str, Any]:
    return {"role": "instance", "name": "a picture.png", "caption": None, "download": api.add_blob(content, **served)}


def test_an_input_that_does_not_hash_ends_the_attempt(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(inputs=[picture(api, b"good"), picture(api, b"right", served=b"wrong")])]
    made = node()
    made.run()
    [failed] = api.bodies("fail")
    assert failed["reason"] == "node_download"
    assert "a picture.png" in failed["message"]
    assert api.artifacts == {}
    assert len(made.naps) >= 1  # it does not ask again at once


INPUTS_ENGINE = """
import pathlib
hello()
start = hear()
texts = [pathlib.Path(each["path"]).read_text() + ":" + each["name"] for each in start["inputs"]]
path = pathlib.Path(start["directory"]) / "texts"
path.write_text(" ".join(texts))
say("artifact", attempt=start["attempt"], name="texts", path=str(path))
say("done", attempt=start["attempt"], step=0)
hear()
"""


def test_inputs_are_on_disk_before_the_engine_starts(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(inputs=[picture(api, b"one"), picture(api, b"two"), picture(api, b"one")])]
    made = node(script=INPUTS_ENGINE)
    made.run()
    assert api.artifacts["texts"] == b"one:a picture.png two:a picture.png one:a picture.png"
    cached = {path.name for path in (made.work_dir / "cache").glob("??/*")}
    assert cached == {hashlib.sha256(each).hexdigest() for each in (b"one", b"two")}


CACHE_ENGINE = """
import pathlib
hello()
start = hear()
attempt = start["attempt"]
say("cache_get", attempt=attempt, key="latents")
first = hear()
path = pathlib.Path(start["directory"]) / "made"
path.write_text("made once")
say("cache_put", attempt=attempt, key="latents", path=str(path))
say("notice", attempt=attempt, name="said", data={"found": first["path"]})
say("done", attempt=attempt, step=1)
hear()
"""


def test_the_cache_is_asked_and_filled(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    node(script=CACHE_ENGINE).run()
    [notice] = api.bodies("notice")
    assert (notice["name"], notice["data"]) == ("said", {"found": None})
    assert api.blobs[api.caches["latents"]] == b"made once"
    api.leases = [lease()]
    node(script=CACHE_ENGINE).run()
    found = api.bodies("notice")[1]["data"]["found"]
    assert found is not None
    assert not Path(found).exists()  # it was the attempt's own, and went with it


def test_a_lease_lost_before_the_engine_has_the_job_starts_nothing(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(inputs=[picture(api, b"one")])]
    api.always["heartbeat"] = LOST
    api.always["storage/blob"] = lambda _: pytest.fail("nothing is fetched for a lost lease")
    assert node().run() == ExitCode.DONE
    assert api.routes() == ["claim", "claim"]


BASE_ENGINE = """
import pathlib
hello()
while True:
    start = hear()
    (base,) = [each for each in start["inputs"] if each["role"] == "base"]
    path = pathlib.Path(start["directory"]) / "base"
    path.write_text(base["path"] + " " + pathlib.Path(base["path"]).read_text())
    if "reason" in start["spec"]:
        say("failed", attempt=start["attempt"], reason=start["spec"]["reason"], message="it cannot be loaded")
        continue
    say("artifact", attempt=start["attempt"], name="base", path=str(path))
    say("done", attempt=start["attempt"], step=0)
"""


def base(api: FakeNodeApi) -> dict[str, Any]:
    return {"role": "base", "name": "my-base", "download": api.add_blob(b"weights")}


def test_base_of_a_job_lies_in_the_model_store_and_is_fetched_once_for_two_jobs(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    file = base(api)
    api.leases = [lease(files=[file]), lease(files=[file], attempt_id="att_2", job_id="job_2")]
    made = node(script=BASE_ENGINE)
    api.hooks["complete"] = api.blobs.clear  # the second job finds nothing in storage
    made.run()
    stored = made.work_dir / "models" / file["download"]["sha256"]
    assert api.artifacts["base"] == f"{stored} weights".encode()
    assert len(api.bodies("complete")) == 2


@pytest.mark.parametrize(("kept", "reason"), [(b"WEIGHTS", "node_download"), (b"weights", "bad_spec")])
def test_job_that_fails_by_a_damaged_base_blames_the_node_which_fetches_the_file_again(
    api: FakeNodeApi, node: NodeFactory, kept: bytes, reason: str
) -> None:
    file = base(api)
    api.leases = [lease(files=[file], spec={"reason": "bad_spec"})]
    made = node(script=BASE_ENGINE)
    stored = made.work_dir / "models" / file["download"]["sha256"]
    stored.parent.mkdir(parents=True)
    stored.write_bytes(kept)
    made.run()
    [failed] = api.bodies("fail")
    assert failed["reason"] == reason
    assert ("my-base was damaged" in failed["message"]) == (kept == b"WEIGHTS")
    assert stored.exists() == (kept == b"weights")
