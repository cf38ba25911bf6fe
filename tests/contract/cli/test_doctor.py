"""`giornata doctor`: each finding is made by breaking what it is about."""

import json
import os
import sqlite3
import ssl
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.fixtures.diagnosis import Examine, ShiftedWallClock, careless_server, examined_at, findings_of
from tests.fixtures.fleets import ToyFleet, governed, with_fleets
from tests.fixtures.served import Served, a_dataset
from tests.fixtures.store_rig import StoreRig
from tests.system.faults.own_mounts import own_mounts
from typer.testing import CliRunner

from giornata.api.app import create_app
from giornata.api.server import HttpServer, listen
from giornata.cli.main import app
from giornata.cli.maintenance.doctor.examine import CHECKS, examine
from giornata.cli.maintenance.doctor.examined import DoctorLimits
from giornata.cli.maintenance.doctor.findings import Harm
from giornata.cli.operate.composition import write_server_file
from giornata.control.attempts.auditing.audit_results import OWN_CONDITIONS
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.audit_log.chain import chain_rows
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.loops import Loop, Loops
from giornata.control.notifications.fan_out import FanOut
from giornata.domain.errors import FleetUnavailable
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.node.work import Claim, NodeInfo
from giornata.protocol.project.webhook_endpoints import ChangeWebhook, CreateWebhook
from giornata.store.database.transfer_marks import STATE, TARGET, marks
from giornata.store.schema import audits

HOUR_S = 3600.0


@pytest.fixture
def look(served: Served, tmp_path: Path) -> Examine:
    """Makes an examination of the served installation, whose files are closed to others."""
    for path in tmp_path.glob("giornata.db*"):
        path.chmod(0o600)
    for path in (tmp_path, tmp_path / "blobs"):
        path.chmod(0o700)
    write_server_file(tmp_path, served.url)
    return lambda **fields: examined_at(tmp_path, served.http, **fields)


def sql(tmp_path: Path, statement: str, *values: str) -> None:
    with closing(sqlite3.connect(tmp_path / "giornata.db")) as connection, connection:
        connection.execute(statement, values)


def test_a_sound_installation_has_no_finding_and_says_what_was_not_checked(look: Examine) -> None:
    diagnosis = examine(look())
    assert list(diagnosis.findings) == []
    assert {*diagnosis.checked, *diagnosis.not_checked} == {name for name, _ in CHECKS}
    assert diagnosis.not_checked == {
        "clock of the storage": "the storage has no endpoint of its own",
        "storage": "the server itself checks what is put into its folder",
        "versions": "SQLite has one server",
        "certificates": "no address has https",
    }


def test_findings_come_in_order_of_harm(look: Examine, tmp_path: Path) -> None:
    (tmp_path / "blobs").chmod(0o755)
    (tmp_path / "server.json").write_text('{"url": "http://127.0.0.1:1"}')
    harms = [each.harm for each in examine(look()).findings]
    assert harms == [Harm.LOSS, Harm.STOPPED]


# ---- the database ----


def test_a_database_that_is_not_there_is_found_and_its_rows_are_not_checked(look: Examine, tmp_path: Path) -> None:
    diagnosis = examine(look(database=f"sqlite:///{tmp_path / 'elsewhere.db'}"))
    assert [(each.check, each.harm) for each in diagnosis.findings] == [("database", Harm.STOPPED)]
    assert diagnosis.not_checked["fleets"] == "there is no database"


def test_a_database_with_an_overwritten_page_is_found(look: Examine, tmp_path: Path) -> None:
    sql(tmp_path, "PRAGMA wal_checkpoint(TRUNCATE)")
    broken = tmp_path / "broken.db"
    content = bytearray((tmp_path / "giornata.db").read_bytes())
    content[4096 * 3 : 4096 * 6] = b"\xff" * 4096 * 3
    broken.write_bytes(content)
    (found,) = findings_of(look(database=f"sqlite:///{broken}"), "database")
    assert found.harm is Harm.LOSS
    assert "is damaged" in found.message or "cannot be read" in found.message


@pytest.mark.parametrize(
    ("revision", "words"),
    [("0019", "the older revision 0019"), ("9999", "unknown revision 9999, of a newer version")],
)
def test_a_database_of_another_revision_is_found(revision: str, words: str, look: Examine, tmp_path: Path) -> None:
    sql(tmp_path, "UPDATE alembic_version SET version_num = ?", revision)
    (found,) = findings_of(look(), "database")
    assert words in found.message


def test_a_database_that_is_being_moved_is_found(look: Examine, served: Served) -> None:
    with served.ctx.store.begin() as tx:
        marks.create(tx.connection)
        said = [{"name": STATE, "said": "moving"}, {"name": TARGET, "said": "db/giornata"}]
        tx.connection.execute(marks.insert(), said)
    (found,) = findings_of(look(), "database")
    assert found.message == "this installation is being moved to db/giornata"
    assert "--abandon" in found.fix


# ---- the audit log ----


def test_a_changed_row_of_the_audit_log_is_found(look: Examine, served: Served, tmp_path: Path) -> None:
    served.client().submit({}, kind="x-count")
    chain_rows(served.ctx)
    assert findings_of(look(), "audit-log") == []
    sql(tmp_path, "UPDATE audit_log SET actor = 'nobody' WHERE project_id = 'default' AND number = ?", "2")
    (found,) = findings_of(look(), "audit-log")
    assert found.harm is Harm.LOSS
    assert "the audit log of default: the chain is broken at row 2: its content was changed" in found.message


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM audit_log_heads WHERE project_id = ?", "DELETE FROM audit_log WHERE project_id = ?"],
)
def test_rows_or_heads_of_the_audit_log_that_were_deleted_are_found(
    statement: str, look: Examine, served: Served, tmp_path: Path
) -> None:
    chain_rows(served.ctx)
    sql(tmp_path, statement, "other")
    (found,) = findings_of(look(), "audit-log")
    assert "the audit log of other: the chain is broken at row 1" in found.message


def test_rows_of_the_audit_log_that_no_loop_chains_are_found(look: Examine, served: Served) -> None:
    served.client().submit({}, kind="x-count")
    assert findings_of(look(), "audit-log") == []
    (found,) = findings_of(look(clock=ShiftedWallClock(HOUR_S)), "audit-log")
    assert found.harm is Harm.DEGRADED
    assert "to be chained" in found.message


def test_events_and_deliveries_of_webhooks_that_no_loop_handles_are_found(look: Examine, served: Served) -> None:
    owner = served.client(served.keys.admin)
    hook = owner.create_webhook(CreateWebhook(target="https://hooks.example/in", events=["job.*"]))
    assert findings_of(look(clock=ShiftedWallClock(HOUR_S)), "outbox") == [], "nothing has happened yet"
    served.client().submit({}, kind="x-count")
    assert findings_of(look(), "outbox") == []
    (found,) = findings_of(look(clock=ShiftedWallClock(HOUR_S)), "outbox")
    assert found.harm is Harm.DEGRADED
    assert "events of webhooks have waited" in found.message
    assert FanOut()(served.ctx) == 1
    (found,) = findings_of(look(clock=ShiftedWallClock(HOUR_S)), "outbox")
    assert "due deliveries of webhooks have waited" in found.message
    owner.change_webhook(hook.id, ChangeWebhook(enabled=False))
    assert findings_of(look(clock=ShiftedWallClock(HOUR_S)), "outbox") == []


def test_a_machine_that_nobody_can_repeat_by_its_own_word_is_found(look: Examine, served: Served) -> None:
    served.client().submit({}, kind="x-count")
    rig = StoreRig(served.ctx, served.ctx.store, served.ctx.clock)  # type: ignore[arg-type]
    lease = rig.lease(1, kinds=("x-count",))

    def audit(number: int, machine_id: str, state: str, message: str = "") -> None:
        at_ms = served.ctx.clock.now_ms()
        names = {
            "id": f"aud_{machine_id}_{number}",
            "job_id": lease.job_id,
            "attempt_id": lease.attempt_id,
            "project_id": "default",
        }
        steps = {"from_step": 0, "to_step": number, "attempt_number": 1, "claimed_sha256": "a" * 64, "runs": []}
        where = {"machine_id": machine_id, "fleet": "", "device": "cpu", "versions": {}}
        ended = {"state": state, "message": message, "created_at_ms": at_ms, "decided_at_ms": at_ms}
        with served.ctx.store.begin() as tx:
            tx.connection.execute(sa.insert(audits).values(names | steps | where | ended))

    for number in range(DoctorLimits().excused_audits):
        assert findings_of(look(), "replay-audits") == []
        audit(number, "liar", "not_audited", OWN_CONDITIONS[number % 2])
        audit(number, "shares-much", "not_audited", OWN_CONDITIONS[1])
        audit(number, "alone", "not_audited", "no machine with an equal fingerprint was free in time")
        if number == 0:
            audit(99, "shares-much", "confirmed")
    (found,) = findings_of(look(), "replay-audits")
    assert (found.harm, "5 audits of liar" in found.message) == (Harm.DEGRADED, True)
    assert findings_of(look(clock=ShiftedWallClock(8 * 24 * HOUR_S)), "replay-audits") == [], "long ago"


# ---- the clocks ----


def test_a_clock_that_was_set_back_is_found(look: Examine, served: Served) -> None:
    served.client().submit({}, kind="x-count")
    found = findings_of(look(clock=ShiftedWallClock(-HOUR_S)), "clock")
    assert any("rows from 1:00:0" in each.message or "rows from 59:5" in each.message for each in found)
    assert all(each.harm is Harm.LOSS for each in found)


@pytest.mark.parametrize(("ahead_s", "words"), [(120.0, "behind"), (-120.0, "ahead")])
def test_a_server_with_another_clock_is_found(ahead_s: float, words: str, look: Examine, served: Served) -> None:
    found = findings_of(look(clock=ShiftedWallClock(ahead_s)), "clock")
    assert any(f"the clock of the server {served.url} is" in each.message and words in each.message for each in found)


# ---- disks and folders ----


def test_a_disk_that_is_nearly_full_is_found(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    mount = 'mount -t tmpfs -o size=4m tmpfs "$1" && exec "$2" -m giornata --data "$1" doctor --json'
    command = [*own_mounts(), "sh", "-c", mount, "sh", str(small), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout.splitlines()[-1])["findings"]
    (found,) = [each for each in findings if each["check"] == "disk"]
    assert found["harm"] == "stopped"
    assert f"the disk of {small} has 4.2 MB left" in found["message"]


# ---- open files ----


@pytest.mark.parametrize(
    ("files", "harm", "words"),
    [
        (600, "degraded", "takes 88 connections, streams and open pages included, not the 1000"),
        (400, "stopped", "may open 400 files and needs 1512"),
    ],
)
def test_limit_of_open_files_below_the_bound_on_connections_is_found(
    files: int, harm: str, words: str, tmp_path: Path
) -> None:
    command = ["sh", "-c", 'ulimit -n "$1" && exec "$2" -m giornata --data "$3" doctor --json', "sh", str(files)]
    environment = {**os.environ, "GIORNATA_MAX_CONNECTIONS": "1000"}
    done = subprocess.run(
        [*command, sys.executable, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout.splitlines()[-1])["findings"]
    (found,) = [each for each in findings if each["check"] == "open-files"]
    assert (found["harm"], words in found["message"]) == (harm, True), found
    assert "one project may hold all of them, by max_connections_per_project (2000)" in found["message"]
    assert "LimitNOFILE=1512" in found["fix"]


@pytest.mark.parametrize("files", [600, 1512])
def test_limit_of_the_server_that_runs_is_the_one_that_counts(files: int, look: Examine, tmp_path: Path) -> None:
    bounds = {"max_connections": 1000, "max_connections_per_project": 10}
    with subprocess.Popen(["sh", "-c", f"ulimit -n {files} && echo && exec cat"], stdin=-1, stdout=-1) as server:
        assert server.stdout is not None
        server.stdout.readline()
        (tmp_path / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": server.pid}))
        found = findings_of(look(**bounds), "open-files")
        server.kill()
    if files == 1512:
        assert found == []
    else:
        assert found[0].message.startswith(f"the server (process {server.pid}) may open 600 files and needs 1512")
        assert "one project" not in found[0].message


@pytest.mark.parametrize("name", [".", "blobs", "giornata.db", "admin.key"])
def test_a_folder_or_file_that_others_may_open_is_found(name: str, look: Examine, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "admin.key":
        path.write_text("gk_")
    path.chmod(0o755 if path.is_dir() else 0o644)
    found = findings_of(look(), "folders")
    assert {each.harm for each in found} == {Harm.LOSS}
    assert any(f"chmod {'700' if path.is_dir() else '600'} {path};" in each.fix for each in found)


# ---- servers ----


def test_a_loop_that_is_late_is_found(look: Examine, served: Served) -> None:
    now_s = [0.0]
    loops = Loops(served.ctx, [Loop(name="lapse", every_s=1.0, run=lapse_leases)], monotonic_s=lambda: now_s[0])
    now_s[0] = HOUR_S
    sock = listen("127.0.0.1", 0)
    server = HttpServer(create_app(served.ctx, loops_status=loops.status), sock, grace_s=5)
    server.start()
    try:
        address = f"http://127.0.0.1:{sock.getsockname()[1]}"
        (found,) = findings_of(look(servers=(address,)), "loops")
    finally:
        server.stop()
    assert found.message == f"{address}: the loop lapse has not succeeded for 1:00:00 h"


def test_a_server_whose_storage_is_away_is_found(look: Examine, served: Served, tmp_path: Path) -> None:
    (tmp_path / "blobs" / "aside").rmdir()
    (found,) = findings_of(look(), "loops")
    assert found.message.startswith(f"{served.url}: blobs: storage cannot be written")


def test_a_server_that_does_not_answer_is_found(look: Examine, tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"url": "http://127.0.0.1:1"}')
    (found,) = findings_of(look(), "loops")
    assert found.message.startswith("http://127.0.0.1:1 does not answer: ")


def test_a_public_url_that_nobody_reaches_is_found(look: Examine) -> None:
    (found,) = findings_of(look(public_url="http://127.0.0.1:1"), "public-url")
    assert found.message.startswith("nodes cannot reach http://127.0.0.1:1: ")


def test_a_public_url_that_leads_to_another_server_is_found(look: Examine) -> None:
    with careless_server() as url:
        (found,) = findings_of(look(public_url=url), "public-url")
    assert "not as a server of Giornata does" in found.message


def test_an_address_of_this_machine_is_found_where_fleets_have_nodes_elsewhere(look: Examine, served: Served) -> None:
    (found,) = findings_of(look(has_fleets=True), "public-url")
    assert f"nodes of fleets cannot reach {served.url}" in found.message


# ---- certificates ----


def tls_server_context(folder: Path, *, days: float) -> tuple[ssl.SSLContext, Path]:
    """A certificate for localhost that ends in so many days, and its file for those who trust it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, key_file = folder / "certificate.pem", folder / "tls-private.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key_file)
    return context, pem


@pytest.mark.parametrize(
    ("days", "is_trusted", "harm", "words"),
    [
        (5, True, Harm.DEGRADED, "runs out in 5.0 days"),
        (-1, True, Harm.STOPPED, "is refused: certificate has expired"),
        (90, False, Harm.STOPPED, "is refused: self"),
        (90, True, None, ""),
    ],
)
def test_a_certificate_that_runs_out_or_is_refused_is_found(
    days: float, is_trusted: bool, harm: Harm | None, words: str, look: Examine, tmp_path: Path
) -> None:
    context, pem = tls_server_context(tmp_path, days=days)
    tls = ssl.create_default_context(cafile=str(pem)) if is_trusted else ssl.create_default_context()
    with careless_server(context) as url:
        found = findings_of(look(servers=(url,), tls=tls), "certificates")
    assert [each.harm for each in found] == ([] if harm is None else [harm])
    assert all(words in each.message for each in found)


# ---- fleets ----


def in_need(served: Served, provider: ToyFleet) -> None:
    """A job waits for the fleet gpu of that provider, which is asked for a node."""
    ctx = with_fleets(served.ctx, {"gpu": governed(provider, kinds=("x-count",), scaling=ScalingPolicy(max_nodes=4))})
    served.client().submit({}, kind="x-count")
    reconcile_fleet(ctx, "gpu")
    scale_fleet(ctx, "gpu")


def test_a_fleet_whose_provider_delivers_nobody_is_found_after_a_while(look: Examine, served: Served) -> None:
    provider = ToyFleet()
    provider.delivers = False
    in_need(served, provider)
    assert findings_of(look(), "fleets") == []
    found = findings_of(look(clock=ShiftedWallClock(HOUR_S)), "fleets")
    assert found[0].message == "fleet gpu gets nobody: 1 nodes wanted, none runs; no reason is known"


def test_a_fleet_whose_provider_refuses_is_found_at_once_with_its_words(look: Examine, served: Served) -> None:
    provider = ToyFleet()
    provider.delivers = False
    in_need(served, provider)
    provider.trouble = FleetUnavailable("the quota is used up")
    ctx = with_fleets(served.ctx, {"gpu": governed(provider)})
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(ctx, "gpu")
    (found,) = findings_of(look(), "fleets")
    assert "the quota is used up" in found.message


def test_jobs_that_wait_where_no_node_asks_are_found(look: Examine, served: Served) -> None:
    served.client().submit({}, kind="x-count")
    assert findings_of(look(), "fleets") == []
    (found,) = findings_of(look(clock=ShiftedWallClock(HOUR_S)), "fleets")
    assert "and no node asks for work" in found.message
    info = NodeInfo(node_id="node_12345678", machine_id="m-1", name="shed")
    body = Claim(request_id="request-1", node=info, kinds=("x-other",)).model_dump(mode="json")
    served.call("POST", "/v1/node/claim", served.keys.node, json=body)
    assert findings_of(look(), "fleets") == []


# ---- the command ----


def test_the_command_prints_findings_as_json_and_exits_with_1(look: Examine, served: Served, tmp_path: Path) -> None:
    look()
    a_dataset(served.client(), tmp_path)
    (tmp_path / "blobs").chmod(0o755)
    done = CliRunner().invoke(app, ["--data", str(tmp_path), "doctor", "--json"])
    assert done.exit_code == 1
    said = json.loads(done.stdout.splitlines()[-1])
    first = said["findings"][0]
    assert (first["check"], first["harm"]) == ("folders", "loss")
    assert {"database", "loops", "fleets"} <= set(said["checked"])
    assert "versions" in said["not_checked"]


def test_the_command_says_each_finding_with_its_next_step(look: Examine, tmp_path: Path) -> None:
    look()
    (tmp_path / "blobs").chmod(0o755)
    done = CliRunner().invoke(app, ["--data", str(tmp_path), "doctor"])
    assert f"loss: other users of this machine may open {tmp_path / 'blobs'}" in done.stdout
    assert f"chmod 700 {tmp_path / 'blobs'}" in done.stdout


def test_the_command_exits_with_0_when_nothing_is_wrong(look: Examine, tmp_path: Path) -> None:
    look()
    few = {"GIORNATA_MAX_CONNECTIONS": "16"}  # how many files may be opened is the affair of the tests' machine, too
    done = CliRunner().invoke(app, ["--data", str(tmp_path), "doctor"], env=few)
    # What is left on the disk of the tests is their machine's affair.
    if "the disk of" not in done.stdout:
        assert (done.exit_code, "Nothing is wrong" in done.stdout) == (0, True), done.stdout
