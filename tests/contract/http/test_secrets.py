"""Secrets go in, and come out once: in the lease of the node that does a job which names one."""

import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.served import Served, a_dataset, serving

from giornata.cli.operate.composition import FernetSealer, new_key
from giornata.client.node import NodeClient
from giornata.control.ports.sealing import NoSealer
from giornata.domain.errors import Forbidden, InvalidInput, NotFound, Unavailable
from giornata.protocol.node.work import Claim, ClaimReply, Lease, NodeInfo

VALUE = "hf_NobodyMayEverReadThis/0123456789+="
OTHER = "hf_AnotherOneThatIsNobodysBusiness"


def claim(served: Served, key: str | None = None, *, request_id: str = "request-1", machine: str = "m-1") -> Lease:
    lease = claim_reply(served, key, request_id=request_id, machine=machine).lease
    assert lease is not None
    return lease


def claim_reply(
    served: Served, key: str | None = None, *, request_id: str = "request-1", machine: str = "m-1"
) -> ClaimReply:
    node = NodeInfo(node_id=f"node_{machine.replace('-', '0'):0>8}", machine_id=machine, name=machine)
    with httpx.Client(base_url=served.url) as http:
        wanted = Claim(request_id=request_id, node=node, kinds=("train",))
        return NodeClient(http, node_key=key or served.keys.node).claim(wanted)


def spec(served: Served, directory: Path, **fields: Any) -> dict[str, Any]:
    dataset = a_dataset(served.client(served.keys.admin), directory)
    return {"model": "some/gated", "dataset": dataset.id, "instance_prompt": "a photo of sks dog", **fields}


def everything_stored(directory: Path) -> str:
    """Every cell of every table, and every file beside the database."""
    with sqlite3.connect(directory / "giornata.db") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        cells = [str(list(database.execute(f"SELECT * FROM {name}"))) for name in tables]  # noqa: S608
    return "\n".join(cells) + "".join(path.read_bytes().decode("latin-1") for path in directory.glob("giornata.db*"))


def test_a_secret_is_set_listed_replaced_and_deleted(served: Served) -> None:
    client = served.client(served.keys.admin)
    first = client.set_secret("HUB", VALUE)
    again = client.set_secret("HUB", OTHER)
    assert (first.name, again.created_at) == ("HUB", first.created_at)
    assert again.changed_at >= first.changed_at
    client.set_secret("ANOTHER", VALUE)
    assert [each.name for each in client.secrets()] == ["ANOTHER", "HUB"]
    assert client.delete_secret("HUB").name == "HUB"
    assert [each.name for each in client.secrets()] == ["ANOTHER"]
    with pytest.raises(NotFound):
        client.delete_secret("HUB")


def test_secrets_are_reachable_only_by_admin_keys_of_their_project(served: Served) -> None:
    served.client(served.keys.admin).set_secret("HUB", VALUE)
    for key in (served.keys.member, served.keys.node):
        client = served.client(key)
        for attempt in (
            lambda c=client: c.set_secret("HUB", OTHER),
            lambda c=client: c.secrets(),
            lambda c=client: c.delete_secret("HUB"),
        ):
            with pytest.raises(Forbidden):
                attempt()
    other = served.client(served.keys.other_admin)
    assert other.secrets() == ()
    with pytest.raises(NotFound):
        other.delete_secret("HUB")


@pytest.mark.parametrize(
    "value", ["", "short", "two words", "two\nlines", 'a"quote"d', "ünïcode-ünïcode", "x" * 4097]
)
def test_invalid_secret_value_is_refused_and_not_echoed(served: Served, value: str) -> None:
    reply = served.call("PUT", "/v1/secrets/HUB", served.keys.admin, json={"value": value})
    assert reply.status_code == 400
    assert reply.json()["faults"][0]["where"] == "value"
    assert not value or value not in reply.text


def test_invalid_secret_name_is_refused(served: Served) -> None:
    for name in ("1st", "a b", "x" * 65, "ü"):
        assert served.call("PUT", f"/v1/secrets/{name}", served.keys.admin, json={"value": VALUE}).status_code == 400


def test_the_key_of_a_tracker_goes_the_same_way(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.admin)
    wanted = spec(served, tmp_path, report_to=["wandb"], wandb_api_key_secret="WANDB", hub_token_secret="HUB")
    with pytest.raises(InvalidInput) as refusal:
        client.submit(wanted)
    assert {fault.where for fault in refusal.value.faults} == {"spec.wandb_api_key_secret", "spec.hub_token_secret"}
    client.set_secret("HUB", VALUE)
    client.set_secret("WANDB", OTHER)
    job = client.submit(wanted)
    lease = claim(served)
    assert (lease.job_id, lease.spec["wandb_api_key_secret"]) == (job.id, "WANDB")
    assert lease.wandb_api_key is not None and lease.hub_token is not None
    assert (lease.wandb_api_key.get_secret_value(), lease.hub_token.get_secret_value()) == (OTHER, VALUE)
    assert OTHER not in repr(lease) + json.dumps(lease.spec) + everything_stored(tmp_path)


def test_a_job_that_names_none_of_the_projects_secrets_is_refused(served: Served, tmp_path: Path) -> None:
    served.client(served.keys.other_admin).set_secret("HUB", VALUE)
    wanted = spec(served, tmp_path, hub_token_secret="HUB")
    with pytest.raises(InvalidInput) as refusal:
        served.client(served.keys.member).submit(wanted)
    assert [fault.where for fault in refusal.value.faults] == ["spec.hub_token_secret"]
    assert "giornata secrets set HUB" in refusal.value.faults[0].hint
    with pytest.raises(InvalidInput):
        served.client(served.keys.member).submit(wanted | {"hub_token_secret": VALUE})


def test_the_value_goes_to_the_node_that_claims_and_nowhere_else(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = served.client(served.keys.admin)
    client.set_secret("HUB", VALUE)
    job = client.submit(spec(served, tmp_path, hub_token_secret="HUB"), name="gated")
    lease = claim(served)
    assert lease.hub_token is not None
    assert lease.hub_token.get_secret_value() == VALUE
    again = claim(served)  # the reply to the first claim got lost
    assert again.hub_token == lease.hub_token
    assert VALUE not in repr(lease) + str(lease) + str(lease.model_dump())
    said = [
        served.call("GET", path, served.keys.admin).text
        for path in (
            f"/v1/jobs/{job.id}",
            "/v1/jobs",
            f"/v1/jobs/{job.id}/events",
            f"/v1/jobs/{job.id}/logs",
            "/v1/secrets",
            "/v1/nodes",
            "/openapi.json",
            "/metrics",
        )
    ]
    assert all("hf_" not in text for text in said)
    assert lease.job_id == job.id
    assert lease.spec["hub_token_secret"] == "HUB"
    assert VALUE not in everything_stored(tmp_path)
    assert VALUE not in caplog.text
    assert VALUE not in json.dumps(lease.spec)


def test_jobs_that_name_none_get_none(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.admin)
    client.set_secret("HUB", VALUE)
    client.submit(spec(served, tmp_path))
    assert claim(served).hub_token is None


SEALED_FOR_ANOTHER = "(SELECT sealed FROM project_secrets WHERE project_id = 'other')"


def sealed_anew() -> str:
    """With a key that the server does not have."""
    return f"'{FernetSealer(new_key()).seal(json.dumps(['default', 'HUB', OTHER]))}'"


def spoil_secret(tmp_path: Path, sealed: str) -> None:
    with sqlite3.connect(tmp_path / "giornata.db") as database:
        database.execute(f"UPDATE project_secrets SET sealed = {sealed} WHERE project_id = 'default'")  # noqa: S608


def test_a_job_whose_secret_cannot_be_opened_fails_before_any_machine_has_it(served: Served, tmp_path: Path) -> None:
    client, other = served.client(served.keys.admin), served.client(served.keys.other_admin)
    client.set_secret("HUB", VALUE)
    other.set_secret("HUB", OTHER)
    for number, sealed in enumerate((SEALED_FOR_ANOTHER, sealed_anew())):
        client.set_secret("HUB", VALUE)
        job = client.submit(spec(served, tmp_path, hub_token_secret="HUB"))
        spoil_secret(tmp_path, sealed)
        reply = claim_reply(served, request_id=f"request-{number}", machine=f"m-{number}")
        assert (reply.lease, reply.reason) == (None, "unusable-job")
        failed = client.get_job(job.id)
        assert (failed.state, failed.attempts, failed.cost_micro_usd) == ("failed", (), 0)
        assert failed.started_at is None
        assert [fault.where for fault in failed.faults] == ["spec.hub_token_secret"]
        assert "the secret HUB cannot be opened" in (failed.error or "")
        assert "secrets_key" in (failed.error or "")
        assert "giornata secrets set HUB" in (failed.error or "")
        assert not list(client.machines())


def test_job_with_unreadable_secret_can_be_retried_after_secret_is_set_again(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.admin)
    client.set_secret("HUB", VALUE)
    job = client.submit(spec(served, tmp_path, hub_token_secret="HUB"))
    spoil_secret(tmp_path, sealed_anew())
    assert claim_reply(served).reason == "unusable-job"
    client.set_secret("HUB", OTHER)
    again = client.retry(job.id)
    lease = claim(served, request_id="request-2")
    assert (lease.job_id, lease.attempt) == (again.id, 1)
    assert lease.hub_token is not None and lease.hub_token.get_secret_value() == OTHER


def test_a_job_whose_secret_was_deleted_fails_and_says_so(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.admin)
    client.set_secret("HUB", VALUE)
    job = client.submit(spec(served, tmp_path, hub_token_secret="HUB"))
    client.delete_secret("HUB")
    assert claim_reply(served).lease is None
    assert "this project has no secret HUB" in (client.get_job(job.id).error or "")


def test_a_lease_that_is_asked_for_again_is_not_given_without_its_secret(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.admin)
    client.set_secret("HUB", VALUE)
    job = client.submit(spec(served, tmp_path, hub_token_secret="HUB"))
    claim(served)  # its reply got lost, and the server was started with another key
    spoil_secret(tmp_path, sealed_anew())
    assert claim_reply(served).lease is None
    failed = client.get_job(job.id)
    assert failed.state == "failed"
    assert [(each.reason, each.blame) for each in failed.attempts] == [("released", "platform")]


def test_a_job_is_refused_while_its_secret_cannot_be_opened(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.admin)
    client.set_secret("HUB", VALUE)
    spoil_secret(tmp_path, sealed_anew())
    with pytest.raises(InvalidInput) as refusal:
        client.submit(spec(served, tmp_path, hub_token_secret="HUB"))
    assert "cannot be opened" in refusal.value.faults[0].message


def test_an_installation_without_a_key_keeps_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="secrets_key"):
        NoSealer().seal(VALUE)
    with pytest.raises(InvalidInput, match="32 bytes"):
        FernetSealer("my dog's name")
    first, second = FernetSealer(new_key()), FernetSealer(new_key())
    assert first.seal(VALUE) != first.seal(VALUE)
    assert first.unseal(first.seal(VALUE)) == VALUE
    with pytest.raises(Unavailable, match="another key"):
        second.unseal(first.seal(VALUE))


def test_the_document_gives_no_example_of_a_value(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        schemas = served.http.get(f"{served.url}/openapi.json").json()["components"]["schemas"]
    value = schemas["SetSecret"]["properties"]["value"]
    assert value.get("format") == "password"
    assert not {"example", "examples", "default"} & set(value)
    assert set(schemas["Secret"]["properties"]) == {"name", "created_at", "changed_at", "created_by"}
