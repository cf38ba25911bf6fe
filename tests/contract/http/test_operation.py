"""What operators see: health, readiness, metrics, the access log, CORS, a defect of ours."""

import json
import logging
import logging.handlers
import queue
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from tests.fixtures.drawn_orders import DrawingNode
from tests.fixtures.served import Served, serving

from giornata import __version__
from giornata.api.app import create_app
from giornata.api.server import HttpServer, listen
from giornata.api.settings import ApiSettings
from giornata.control.loops import LoopStatus
from giornata.domain.errors import InvalidInput, Unavailable

JOB = {"kind": "x-count", "spec": {"steps": 5}}


def answer(app: FastAPI, served: Served, path: str) -> tuple[int, dict[str, object]]:
    """One request to another app over the same world."""
    server = HttpServer(app, listen("127.0.0.1", 0))
    server.start()
    try:
        response = served.http.get(server.url + path)
        return response.status_code, response.json()
    finally:
        server.stop()


def test_ready_when_everything_is_well(served: Served) -> None:
    assert served.call("GET", "/healthz", None).json() == {"status": "ok"}
    response = served.call("GET", "/readyz", None)
    assert (response.status_code, response.json()) == (
        200,
        {"ready": True, "checks": {"store": "ok", "blobs": "ok"}, "loops": []},
    )


def test_not_ready_says_why(served: Served) -> None:
    def late() -> Sequence[LoopStatus]:
        return [LoopStatus(name="lapse", every_s=1.0, runs=9, errors=3, last_success_age_s=500.0)]

    def behind() -> None:
        raise Unavailable("the schema is at 1, not at 2; run the migrations")

    app = create_app(served.ctx, loops_status=late, checks={"migrations": behind})
    status, body = answer(app, served, "/readyz")
    assert (status, body["ready"]) == (503, False)
    wrong = "the schema is at 1, not at 2; run the migrations"
    assert body["checks"] == {"store": "ok", "blobs": "ok", "migrations": wrong}
    assert body["loops"] == [{"name": "lapse", "runs": 9, "errors": 3, "last_success_age_s": 500.0, "late": True}]


def test_a_fleet_that_is_away_leaves_the_server_ready(served: Served) -> None:
    def late() -> Sequence[LoopStatus]:
        return [LoopStatus(name="scale:gpu", every_s=1.0, errors=3, last_success_age_s=500.0, vital=False)]

    status, body = answer(create_app(served.ctx, loops_status=late), served, "/readyz")
    assert (status, body["ready"]) == (200, True)
    assert [(each["name"], each["late"]) for each in body["loops"]] == [("scale:gpu", True)]


def test_loops_are_told_with_what_each_did_last_and_its_error(served: Served) -> None:
    done = {"last_done": "i-1 is gone", "last_done_age_s": 90.0}
    well = LoopStatus(name="lapse", every_s=1.0, runs=9, last_success_age_s=0.5, **done)
    ill = LoopStatus(name="reap", every_s=10.0, runs=3, errors=3, errors_in_a_row=3, last_error="no route")
    mended = LoopStatus(name="bans", every_s=2.0, runs=5, errors=1, last_error="away")
    served.app.state.loops_status = lambda: [mended, well, ill]
    reply = served.call("GET", "/v1/loops", served.keys.admin)
    found = reply.json()["items"]
    assert [(each["name"], each["in_trouble"]) for each in found] == [
        ("reap", True),
        ("bans", False),
        ("lapse", False),
    ]
    assert [each["last_error"] for each in found] == ["no route", "away", ""]
    assert [each["last_success_age_s"] for each in found] == [None, 0.0, 0.5]
    assert (found[2]["last_done"], found[2]["last_done_age_s"]) == ("i-1 is gone", 90.0)
    assert served.call("GET", "/v1/loops", served.keys.member).status_code == 403


def test_metrics_count_jobs_nodes_attempts_and_http_requests(served: Served) -> None:
    for kind in ("x-count", "x-other", "x-other"):
        served.call("POST", "/v1/jobs", served.keys.member, json={**JOB, "kind": kind})
    served.call("GET", "/v1/jobs", None)
    node = {"node_id": "node_00000001", "machine_id": "m", "name": "n"}
    claim = {"request_id": "request-1", "node": node, "kinds": ["x-count"]}
    lease = served.call("POST", "/v1/node/claim", served.keys.node, json=claim).json()["lease"]
    report = {"reason": "bad_spec", "message": "no"}
    served.call("POST", f"/v1/node/attempts/{lease['attempt_id']}/fail", lease["token"], json=report)
    lines = served.call("GET", "/metrics", None).text.splitlines()
    for expected in (
        'giornata_jobs{kind="x-*",state="queued"} 2.0',
        'giornata_jobs{kind="x-*",state="failed"} 1.0',
        'giornata_jobs{kind="train",state="queued"} 0.0',
        'giornata_nodes{state="idle"} 1.0',
        'giornata_outbox_lag_seconds{stage="events"} 0.0',
        'giornata_outbox_lag_seconds{stage="deliveries"} 0.0',
        'giornata_audits{state="refuted"} 0.0',
        'giornata_attempts_ended_total{reason="bad_spec"} 1.0',
        'giornata_http_requests_total{method="POST",route="/v1/jobs",status="201"} 3.0',
        'giornata_http_requests_total{method="GET",route="/v1/jobs",status="401"} 1.0',
    ):
        assert expected in lines
    (oldest,) = [line for line in lines if line.startswith("giornata_oldest_queued_seconds ")]
    assert float(oldest.split()[1]) >= 0


def test_metrics_count_pictures(served: Served) -> None:
    spec = {"model": "some/model", "prompts": ["a fox"], "num_images_per_prompt": 3, "width": 64, "height": 64}
    served.call("POST", "/v1/jobs", served.keys.member, json={"kind": "generate", "spec": spec}).raise_for_status()
    node = DrawingNode(served=served)
    node.claim(most=1)
    metrics = served.call("GET", "/metrics", None).text.splitlines()
    for expected in (
        'giornata_pictures{state="queued"} 2.0',
        'giornata_pictures{state="leased"} 1.0',
        'giornata_pictures{state="paused"} 0.0',
        "giornata_picture_leases 1.0",
        'giornata_pictures_ended_total{state="succeeded"} 0.0',
        'giornata_claim_duration_seconds_count{outcome="lease"} 1.0',
    ):
        assert expected in metrics
    (oldest,) = [line for line in metrics if line.startswith("giornata_oldest_queued_picture_seconds ")]
    assert float(oldest.split()[1]) >= 0
    node.draw(node.lease["pictures"])
    node.complete()
    metrics = served.call("GET", "/metrics", None).text.splitlines()
    assert 'giornata_pictures_ended_total{state="succeeded"} 1.0' in metrics


def test_metrics_tell_how_long_requests_claims_and_jobs_take(served: Served) -> None:
    served.call("POST", "/v1/jobs", served.keys.member, json=JOB)
    served.call("GET", "/v1/jobs", None)
    node = {"node_id": "node_00000001", "machine_id": "m", "name": "n"}
    for number in (1, 2):
        claim = {"request_id": f"request-{number}", "node": node, "kinds": ["x-count"]}
        reply = served.call("POST", "/v1/node/claim", served.keys.node, json=claim).json()
        if number == 1:
            lease = reply["lease"]
    served.call("POST", f"/v1/node/attempts/{lease['attempt_id']}/complete", lease["token"], json={"step": 1})
    served.call("POST", f"/v1/node/attempts/{lease['attempt_id']}/complete", lease["token"], json={"step": 1})
    text = served.call("GET", "/metrics", None).text
    for expected in (
        'giornata_http_request_duration_seconds_count{method="POST",route="/v1/jobs",status="2xx"} 1.0',
        'giornata_http_request_duration_seconds_count{method="GET",route="/v1/jobs",status="4xx"} 1.0',
        'giornata_http_request_duration_seconds_count{method="POST",route="/v1/node/claim",status="2xx"} 2.0',
        'giornata_claim_duration_seconds_count{outcome="lease"} 1.0',
        'giornata_claim_duration_seconds_count{outcome="empty-queue"} 1.0',
        'giornata_job_queue_wait_seconds_count{kind="x-*"} 1.0',
        'giornata_job_duration_seconds_count{kind="x-*",state="succeeded"} 1.0',
        "giornata_spend_usd_total 0.0",
        "giornata_spend_micro_usd_total 0.0",
    ):
        assert expected in text.splitlines()
    sums = [line for line in text.splitlines() if "_seconds_sum" in line]
    assert all(0 <= float(line.split()[-1]) < 60 for line in sums)
    assert len(sums) >= 6


def test_metrics_page_parses_as_prometheus_text_with_cumulative_histogram(served: Served) -> None:
    served.call("GET", "/v1/jobs", served.keys.member)
    families = list(text_string_to_metric_families(served.call("GET", "/metrics", None).text))
    (times,) = [each for each in families if each.name == "giornata_http_request_duration_seconds"]
    assert times.type == "histogram"
    buckets = [sample.value for sample in times.samples if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets), "counts are cumulative"
    assert buckets[-1] == 1.0
    assert not [each.name for each in families if each.name.endswith(("_ms", "_s"))]


@pytest.fixture
def access_log() -> Iterator["queue.Queue[logging.LogRecord]"]:
    """Lines as the server's thread writes them, which is after the reply has left."""
    lines: queue.Queue[logging.LogRecord] = queue.Queue()
    logger, handler = logging.getLogger("giornata.access"), logging.handlers.QueueHandler(lines)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_the_access_log_is_json_without_secrets(served: Served, access_log: "queue.Queue[logging.LogRecord]") -> None:
    response = served.call("GET", "/v1/jobs/job_x?token=hush", served.keys.member)
    record = access_log.get(timeout=10)
    assert access_log.empty()
    line = json.loads(record.getMessage())
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/jobs/{job_id}", 400)
    assert line["job"] == "job_x"
    assert line["request_id"] == response.headers["x-request-id"]
    assert "hush" not in record.getMessage()
    assert served.keys.member not in record.getMessage()


def test_a_defect_of_ours_leaks_nothing(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(served.ctx)

    @app.get("/v1/broken")
    def broken() -> None:
        raise ZeroDivisionError("the secret of the server")

    status, body = answer(app, served, "/v1/broken")
    assert (status, body["code"], body["retryable"]) == (500, "internal", True)
    assert "secret" not in json.dumps(body)
    assert str(body["detail"]).split()[-1] in caplog.text
    assert "the secret of the server" in caplog.text


def test_cross_origin_is_off_by_default(served: Served) -> None:
    headers = {"Origin": "https://app.test", "Access-Control-Request-Method": "POST"}
    response = served.call("OPTIONS", "/v1/jobs", None, headers=headers)
    assert response.status_code == 405
    assert "access-control-allow-origin" not in response.headers


def test_cross_origin_for_those_allowed(tmp_path: Path) -> None:
    with serving(tmp_path, ApiSettings(allowed_origins=("https://app.test",))) as served:
        document = served.http.get(f"{served.url}/openapi.json").json()
        for path in document["paths"]:
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                headers = {
                    "Origin": "https://app.test",
                    "Access-Control-Request-Method": method,
                    "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
                }
                reply = served.call("OPTIONS", path, None, headers=headers)
                assert reply.status_code == 200, (path, method, reply.text)
                assert reply.headers["access-control-allow-origin"] == "https://app.test"
        refused = served.call("GET", "/v1/jobs", None, headers={"Origin": "https://app.test"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.test"
        stranger = served.call("GET", "/v1/jobs", served.keys.member, headers={"Origin": "https://evil.test"})
        assert "access-control-allow-origin" not in stranger.headers


def test_a_port_in_use_is_said_clearly() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port} of 127.0.0.1 is in use"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("nowhere.invalid", 0)])
def test_an_address_of_no_use_is_said_clearly(host: str, port: int) -> None:
    with pytest.raises(InvalidInput):
        listen(host, port)


def test_metrics_tell_the_version_late_loops_and_the_room_on_disks(served: Served, tmp_path: Path) -> None:
    loop = LoopStatus(name="lapse", every_s=1.0, last_success_age_s=500.0)
    disks = {"data": tmp_path, "away": tmp_path / "nothing"}
    app = create_app(served.ctx, loops_status=lambda: [loop], disks=disks)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(app.state.metrics.text().decode())
        for sample in family.samples
    }
    assert found["giornata_build_info", __version__] == 1
    assert found["giornata_loop_late", "lapse"] == 1
    assert 0 < found["giornata_disk_free_bytes", "data"] <= found["giornata_disk_size_bytes", "data"]
    assert ("giornata_disk_free_bytes", "away") not in found
