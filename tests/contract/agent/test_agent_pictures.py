"""A node and its leases of pictures: a real engine process without a model, a server steered by the test."""

import hashlib
import itertools
import json
import runpy
import sys
import threading
from pathlib import Path

import httpx
import pytest
from tests.contract.agent.conftest import COUNT_ENGINE, DRAW_ENGINE, NodeFactory
from tests.contract.agent.fake_node_api import AWAY, LOST, FakeNodeApi, api_ok, cut, lease, picture_lease, problem

from giornata.agent.attempt.report import without_folders
from giornata.agent.claiming import FETCHING_WAIT_S, ExitCode
from giornata.protocol.node.pictures import PictureFlag

png_of = runpy.run_path(str(DRAW_ENGINE))["png_of"]


def drawn(api: FakeNodeApi, order_id: str = "job_1") -> dict[int, list[bytes | None]]:
    """By number, the bytes of each report that the server has taken."""
    return {number: said for (order, number), said in sorted(api.pictures.items()) if order == order_id}


def each_once(count: int) -> dict[int, list[bytes]]:
    return {number: [png_of(number)] for number in range(count)}


def test_each_picture_of_a_lease_arrives_once_with_the_bytes_that_the_engine_wrote(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    api.picture_leases = [picture_lease(*["a cat"] * 20)]
    made = drawing()
    assert made.run() == ExitCode.DONE
    assert drawn(api) == each_once(20)
    assert {body["max_pictures"] for body in api.bodies("claim")} == {16}
    [done] = api.bodies("complete")
    assert done["step"] == 20
    assert made.left_behind() == []


def test_the_last_report_completes_the_lease_and_nothing_is_said_under_it_afterwards(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    api.picture_leases, api.completes = [picture_lease(*["a cat"] * 20)], True
    made = drawing()
    assert made.run() == ExitCode.DONE
    assert drawn(api) == each_once(20)
    assert [body["complete"] for body in api.bodies("pictures")].count(True) == 1
    assert api.bodies("complete") == api.bodies("fail") == api.bodies("release") == []
    assert made.left_behind() == []


def test_a_report_that_did_not_end_the_lease_is_followed_by_its_completion(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    api.picture_leases = [picture_lease("a cat", "fail")]
    drawing().run()
    assert [body["complete"] for body in api.bodies("pictures")][-1] is True
    assert len(api.bodies("complete")) == 1


def test_pictures_are_reported_several_at_a_time(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease(*["a cat"] * 20)]
    drawing().run()
    assert len(api.bodies("picture-uploads")) <= 4
    assert len(api.bodies("pictures")) <= 6
    assert {call.bearer for call in api.calls if call.route == "pictures"} == {"token-1"}


def test_a_blocked_picture_is_reported_and_never_uploaded(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease("block")]
    drawing().run()
    [[report]] = [body["drawn"] for body in api.bodies("pictures")]
    assert (report["sha256"], report["flags"]) == (None, PictureFlag.BLOCKED)
    assert api.bodies("picture-uploads") == []


def test_a_picture_that_cannot_be_drawn_is_reported_and_the_others_arrive(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    api.picture_leases = [picture_lease("a cat", "fail", "a cat")]
    drawing().run()
    failed = [each for body in api.bodies("pictures") for each in body["failed"]]
    assert [(each["number"], each["reason"], each["message"]) for each in failed] == [
        (1, "node_vram", "out of memory")
    ]
    assert drawn(api).keys() == {0, 2}
    assert len(api.bodies("complete")) == 1


def test_why_a_picture_failed_is_told_without_the_nodes_folders(
    api: FakeNodeApi, drawing: NodeFactory, tmp_path: Path
) -> None:
    api.picture_leases = [picture_lease("fail=bad_spec file")]
    drawing().run()
    [failed] = [each for body in api.bodies("pictures") for each in body["failed"]]
    assert failed["message"].endswith("/lora.safetensors is broken")
    assert str(tmp_path) not in failed["message"]
    said = f"{tmp_path}/run-1/x.png, '{sys.prefix}/lib/y.py', /models{tmp_path}/z and {tmp_path}s/z"
    told = f"run-1/x.png, 'lib/y.py', /models{tmp_path}/z and {tmp_path}s/z"
    assert without_folders(said, tmp_path) == told


def test_the_files_of_a_lease_are_fetched_before_the_engine_starts(api: FakeNodeApi, drawing: NodeFactory) -> None:
    file = {"role": "lora", "name": "style.safetensors", "download": api.add_blob(b"weights")}
    api.picture_leases = [picture_lease("a cat", files=[file])]
    made = drawing()
    made.run()
    assert drawn(api) == each_once(1)
    kept = made.work_dir / "models" / hashlib.sha256(b"weights").hexdigest()
    assert kept.read_bytes() == b"weights"
    assert made.left_behind() == []


def test_an_annotation_that_the_project_wants_is_kept_before_the_lease_ends(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    api.completes = True
    api.picture_leases = [picture_lease("annotation=k1", "annotation=k2", wanted_annotations=["k1"])]
    made = drawing()
    made.run()
    assert api.caches == {"annotation:k1": hashlib.sha256(png_of(0)).hexdigest()}
    assert drawn(api) == each_once(2)
    assert made.left_behind() == []


def test_a_lease_that_only_annotates_ends_with_its_annotation_kept_and_no_picture_drawn(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    api.picture_leases = [picture_lease("annotation=k1", "a", wanted_annotations=["k1"], only_annotates=True)]
    made = drawing()
    made.run()
    assert api.caches == {"annotation:k1": hashlib.sha256(png_of(0)).hexdigest()}
    assert drawn(api) == {}
    assert len(api.bodies("complete")) == 1
    assert made.left_behind() == []


def test_a_lease_that_only_annotates_fails_when_its_annotation_is_not_taken(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    api.always["cache/annotation:k1"] = problem(403, "forbidden")
    api.picture_leases = [picture_lease("annotation=k1", wanted_annotations=["k1"], only_annotates=True)]
    drawing().run()
    assert api.bodies("complete") == []
    [report] = api.bodies("fail")
    assert "cache entry annotation:k1 could not be delivered" in report["message"]


def test_an_annotation_that_storage_has_lost_is_left_to_the_engine(api: FakeNodeApi, drawing: NodeFactory) -> None:
    file = {"role": "annotation", "name": "k1", "download": api.add_blob(b"edges")}
    api.blobs.clear()
    api.picture_leases = [picture_lease("a cat", files=[file])]
    drawing().run()
    assert drawn(api) == each_once(1)
    assert api.bodies("fail") == []


def test_a_model_is_fetched_once_for_all_leases(api: FakeNodeApi, drawing: NodeFactory) -> None:
    file = {"role": "lora", "name": "style.safetensors", "download": api.add_blob(b"weights")}
    api.picture_leases = [picture_lease("a cat", files=[file]), picture_lease("a cat", attempt=2, files=[file])]
    api.hooks["complete"] = api.blobs.clear
    drawing(join_for_s=0.0).run()
    assert drawn(api) == each_once(1)
    assert drawn(api, "job_2") == each_once(1)


def test_a_file_that_does_not_arrive_whole_fails_the_lease(api: FakeNodeApi, drawing: NodeFactory) -> None:
    file = {"role": "base", "name": "base.safetensors", "download": api.add_blob(b"weights", served=b"WEIGHTS")}
    api.picture_leases = [picture_lease("a cat", files=[file])]
    drawing().run()
    [failure] = api.bodies("fail")
    assert failure["reason"] == "node_download"
    assert api.pictures == {}


@pytest.mark.parametrize(("kept", "reason"), [(b"WEIGHTS", "node_download"), (b"weights", "bad_spec")])
def test_a_picture_that_fails_by_a_damaged_file_blames_the_node_which_fetches_the_file_again(
    api: FakeNodeApi, drawing: NodeFactory, kept: bytes, reason: str
) -> None:
    file = {"role": "lora", "name": "style.safetensors", "download": api.add_blob(b"weights")}
    api.picture_leases = [picture_lease("fail=bad_spec", files=[file])]
    made = drawing()
    stored = made.work_dir / "models" / hashlib.sha256(b"weights").hexdigest()
    stored.parent.mkdir(parents=True)
    stored.write_bytes(kept)
    made.run()
    [failed] = [each for body in api.bodies("pictures") for each in body["failed"]]
    assert failed["reason"] == reason
    assert ("style.safetensors was damaged" in failed["message"]) == (kept == b"WEIGHTS")
    assert stored.exists() == (kept == b"weights")
    assert [each for body in api.bodies("claim") for each in body["damaged"]] == (
        [stored.name] if kept == b"WEIGHTS" else []
    )


def test_the_next_lease_is_claimed_when_half_of_the_first_is_drawn(
    api: FakeNodeApi, drawing: NodeFactory, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    api.picture_leases = [
        picture_lease("a cat", "a cat", f"gate={gate}", "a cat", base_key="0123"),
        picture_lease("a cat", attempt=2),
    ]
    claims = itertools.count()

    def granted(_: httpx.Request) -> httpx.Response:
        if next(claims) == 1:
            gate.unlink()  # the engine stands at the third of four pictures, and does not move before this claim
        return httpx.Response(200, json={"picture_lease": api.picture_leases.pop(0)})

    api.answers["claim"] = [granted, granted]
    drawing(max_pictures=4).run()
    first, second, *_ = api.bodies("claim")
    assert (first["kinds"], first["max_pictures"]) == (["generate", "validate", "canary"], 4)
    assert (second["kinds"], second["max_pictures"], second["wait_s"]) == (["generate"], 4, 0)
    assert (first["held_models"], second["held_models"]) == ([], ["0123"])
    assert drawn(api) == each_once(4)
    assert drawn(api, "job_2") == each_once(1)


def test_model_that_the_server_names_is_fetched_before_a_lease_needs_it(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    download = api.add_blob(b"weights")

    def hint(_: httpx.Request) -> httpx.Response:
        hinted = {"base_key": "0123", "downloads": [download]}
        return httpx.Response(200, json={"reason": "models-elsewhere", "held_version": 0, "prefetch": hinted})

    def until_it_is_held(request: httpx.Request) -> httpx.Response:
        said = json.loads(request.content)
        told = said["held"] is not None and said["held"]["added"] == {"disk": [download["sha256"]]}
        return httpx.Response(200, json={"reason": "empty-queue", "held_version": 0, "drain": told})

    api.answers["claim"], api.always["claim"] = [hint], until_it_is_held
    assert drawing(claim_wait_s=5.0).run() == ExitCode.DONE
    first, *_, last = api.bodies("claim")
    assert (first["held_version"], first["held"]["since"], first["fetching"]) == (0, None, None)
    assert (last["held_version"], last["held"]["since"]) == (1, 0)
    waits = {body["wait_s"] for body in api.bodies("claim") if body["fetching"] == "0123"}
    assert waits <= {FETCHING_WAIT_S}


def test_the_claim_after_a_lease_tells_what_the_engine_has_in_host_memory(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    file = {"role": "base", "name": "base.safetensors", "download": api.add_blob(b"weights")}
    sha256 = file["download"]["sha256"]
    api.picture_leases = [picture_lease("a cat host", files=[file])]
    drawing().run()
    told = [body["held"]["added"] for body in api.bodies("claim") if body["held"] is not None]
    assert told[0] == {}
    assert {"host": [sha256], "disk": [sha256]} in told


def test_the_files_of_the_next_lease_are_fetched_while_the_first_is_drawn(
    api: FakeNodeApi, drawing: NodeFactory, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    file = {"role": "lora", "name": "style.safetensors", "download": api.add_blob(b"weights")}
    api.picture_leases = [
        picture_lease("a cat", "a cat", f"gate={gate}", "a cat"),
        picture_lease("a cat", attempt=2, files=[file]),
    ]

    def fetched(_: httpx.Request) -> httpx.Response:
        gate.unlink()  # the engine stands at the third of four pictures until the other lease's file is asked for
        return httpx.Response(200, stream=httpx.ByteStream(b"weights"))

    api.always["storage/blob"] = fetched
    drawing().run()
    assert drawn(api) == each_once(4)
    assert drawn(api, "job_2") == each_once(1)


def test_no_more_than_four_leases_are_held_while_uploads_are_slow(api: FakeNodeApi, drawing: NodeFactory) -> None:
    """Uploads do not end before the fourth lease has been renewed several times: a fifth would have been claimed."""
    api.picture_leases = [picture_lease("a cat", attempt=number) for number in range(1, 7)]
    beats, go = itertools.count(1), threading.Event()

    def beat(request: httpx.Request) -> httpx.Response:
        if request.headers["authorization"] == "Bearer token-4" and next(beats) == 10:
            go.set()
        return api_ok(request)

    def slow(request: httpx.Request) -> httpx.Response:
        assert go.wait(60)
        api.uploads[request.url.path.rsplit("/", 1)[-1]] = request.read()
        return httpx.Response(200)

    api.always |= {"heartbeat": beat, "storage/upload": slow}
    drawing().run()
    assert len(api.bodies("complete")) == 6
    routes = [call.route for call in api.calls if call.route in {"claim", "complete"}]
    assert routes[:5] == ["claim"] * 4 + ["complete"]


def test_no_further_pictures_are_taken_when_their_time_is_over(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease("sleep=0.5"), picture_lease("a cat", attempt=2)]
    drawing(join_for_s=0.0).run()
    assert ["generate"] not in [body["kinds"] for body in api.bodies("claim")]
    routes = [call.route for call in api.calls if call.route in {"claim", "complete"}]
    assert routes == ["claim", "complete", "claim", "complete", "claim"]


def test_no_pictures_are_asked_for_while_a_job_is_at_work(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.leases = [lease("x-count", spec={"steps": 5, "every": 5, "step_s": 0.1})]
    drawing(workloads={"x-count": (sys.executable, str(COUNT_ENGINE))}).run()
    assert [len(body["kinds"]) for body in api.bodies("claim")] == [4, 4]


def test_dropped_pictures_are_told_to_the_engine_and_not_missed(
    api: FakeNodeApi, drawing: NodeFactory, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    api.unwanted = {("job_1", 2)}
    api.picture_leases = [picture_lease("a cat", f"gate={gate}", "sleep=1 crash", "a cat")]
    api.hooks["pictures"] = gate.unlink
    drawing().run()
    assert drawn(api).keys() == {0, 1, 3}
    assert len(api.bodies("complete")) == 1


def test_pictures_that_the_lease_has_lost_are_not_drawn(
    api: FakeNodeApi, drawing: NodeFactory, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    api.left = [("job_1", 1), ("job_1", 3)]
    api.picture_leases = [picture_lease("a cat", f"gate={gate}", "sleep=1 crash", "a cat")]
    api.hooks["pictures"] = gate.unlink
    drawing().run()
    assert drawn(api).keys() == {0, 1, 3}
    assert len(api.bodies("complete")) == 1


def test_a_drawn_picture_that_nobody_wants_is_not_uploaded(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.unwanted = {("job_1", 0)}
    api.picture_leases = [picture_lease("a cat", "a cat")]
    made = drawing()
    made.run()
    assert drawn(api) == {1: [png_of(1)]}
    assert len(api.bodies("complete")) == 1
    assert made.left_behind() == []


def test_pictures_drawn_before_a_crash_stand(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease("a cat", "a cat", "crash", "a cat")]
    drawing().run()
    assert drawn(api) == each_once(2)
    [failure] = api.bodies("fail")
    assert failure["reason"] == "crashed"
    assert api.bodies("complete") == []


def test_a_picture_that_the_engine_forgets_fails_the_lease(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease("a cat", "forget")]
    drawing().run()
    [failure] = api.bodies("fail")
    assert failure["reason"] == "crashed"
    assert "1 of 2 pictures" in failure["message"]
    assert drawn(api) == each_once(1)


def test_drawn_pictures_are_reported_before_picture_lease_is_released(
    api: FakeNodeApi, drawing: NodeFactory, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    made = drawing()

    def leave(request: httpx.Request) -> httpx.Response:
        made.shutdown.ask()
        gate.unlink()
        return api.handle(request)

    api.picture_leases = [picture_lease("a cat", f"gate={gate}", "sleep=0.5", "a cat")]
    api.answers["picture-uploads"] = [leave]
    assert made.run() == ExitCode.DONE
    assert 0 in drawn(api)
    assert 3 not in drawn(api)
    routes = [route for route in api.routes() if route in {"pictures", "release"}]
    assert routes[-1] == "release"
    assert api.bodies("complete") == api.bodies("fail") == []
    assert made.left_behind() == []


def test_a_lost_lease_drops_the_pictures_and_nothing_more_is_written(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease("a cat", "sleep=0.6", "a cat")]
    api.always["pictures"] = LOST
    made = drawing()
    assert made.run() == ExitCode.DONE
    assert len(api.bodies("pictures")) == 1
    assert api.bodies("complete") == api.bodies("fail") == api.bodies("release") == []
    assert api.pictures == {}
    assert made.left_behind() == []


def test_a_lease_that_is_lost_by_a_heartbeat_ends_the_engines_work(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease(*["sleep=0.2"] * 60)]
    api.answers["heartbeat"] = [api_ok, LOST]
    drawing().run()
    assert len(drawn(api)) < 60
    assert api.bodies("complete") == api.bodies("fail") == []


def test_a_server_that_is_away_for_less_than_a_lease_costs_no_picture(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease(*["a cat"] * 3)]
    api.answers["picture-uploads"] = [AWAY, cut]
    api.answers["pictures"] = [cut, AWAY]
    drawing().run()
    assert drawn(api) == each_once(3)
    assert len(api.bodies("complete")) == 1


def test_bytes_that_storage_spoils_are_uploaded_again(api: FakeNodeApi, drawing: NodeFactory) -> None:
    """Storage says that all is well, and the server finds other bytes."""
    spoiled: list[bool] = []

    def spoil(request: httpx.Request) -> httpx.Response:
        name = request.url.path.rsplit("/", 1)[-1]
        api.uploads[name] = request.read() if spoiled else b"~"
        spoiled.append(True)
        return httpx.Response(200)

    api.picture_leases = [picture_lease(*["a cat"] * 5)]
    api.always["storage/upload"] = spoil
    drawing().run()
    assert drawn(api) == each_once(5)
    assert len(spoiled) == 6


def test_a_lease_whose_pictures_were_all_canceled_is_done_at_once(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease()]
    drawing().run()
    assert api.routes() == ["claim", "complete", "claim"]


def test_storage_that_never_keeps_the_bytes_fails_the_lease_and_blames_no_job(
    api: FakeNodeApi, drawing: NodeFactory
) -> None:
    api.picture_leases = [picture_lease("a cat")]
    api.always["storage/upload"] = lambda request: httpx.Response(200, content=request.read()[:0])
    made = drawing()
    made.run()
    [failure] = api.bodies("fail")
    assert failure["reason"] == "node_download"
    assert made.left_behind() == []


def test_an_url_that_ran_out_is_asked_for_again(api: FakeNodeApi, drawing: NodeFactory) -> None:
    puts: list[str] = []

    def late(request: httpx.Request) -> httpx.Response:
        puts.append(request.url.path)
        if len(puts) == 1:
            return httpx.Response(403)
        api.uploads[request.url.path.rsplit("/", 1)[-1]] = request.read()
        return httpx.Response(200)

    api.picture_leases = [picture_lease("a cat")]
    api.always["storage/upload"] = late
    drawing().run()
    assert drawn(api) == each_once(1)
    assert len(api.bodies("picture-uploads")) == 2


def test_a_refused_report_fails_the_lease(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease("a cat")]
    api.always["pictures"] = problem(422, "invalid-input", "no")
    drawing().run()
    [failure] = api.bodies("fail")
    assert "pictures could not be delivered" in failure["message"]


def test_a_picture_is_uploaded_under_the_hash_of_its_bytes(api: FakeNodeApi, drawing: NodeFactory) -> None:
    api.picture_leases = [picture_lease("a cat")]
    drawing().run()
    [request] = api.bodies("picture-uploads")
    [picture] = request["pictures"]
    assert picture["sha256"] == hashlib.sha256(png_of(0)).hexdigest()
    assert picture["size_bytes"] == len(png_of(0))
    assert picture["media_type"] == "image/png"


@pytest.mark.parametrize("order", ["drain", "release"])
def test_an_order_of_the_server_gives_the_rest_of_the_pictures_back(
    api: FakeNodeApi, drawing: NodeFactory, order: str
) -> None:
    def obey() -> None:
        api.order = order

    api.picture_leases = [picture_lease("a cat", *["sleep=0.3"] * 60)]
    api.hooks["pictures"] = obey
    drawing().run()
    assert 0 in drawn(api)
    assert len(drawn(api)) < 60
    [release] = api.bodies("release")
    assert release["reason"] == {"drain": "preempted", "release": "released"}[order]
