"""Files from a real server that lies, stalls and redirects; and what the hub and Civitai say of theirs."""

import json
import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.fixtures.file_source import FileSource, Lie, file_source

from giornata.client.retry import Backoff
from giornata.domain.errors import InvalidInput, Unavailable
from giornata.domain.generation.model_kinds import ModelFamily
from giornata.model_sources.web_file import MOST_REDIRECTS, PATIENCE_S, WebReader
from giornata.model_sources.web_sources import WebSources
from giornata.outbound.public_addresses import AddressRule
from giornata.protocol.model_references import WebFile, model_reference

BODY = os.urandom(100_000)
SHA256 = sha256(BODY).hexdigest()
HASTY = {"timeout": httpx.Timeout(10, read=1.0)}
ETAG = {"ETag": '"one"'}


@pytest.fixture(scope="module")
def server() -> Iterator[FileSource]:
    with file_source() as source:
        yield source


@pytest.fixture
def source(server: FileSource) -> FileSource:
    server.files, server.lies, server.asked, server.headers = {"/a.safetensors": BODY}, [], [], {}
    return server


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client() as client:
        yield client


def reader_of(source: FileSource, http: httpx.Client, *, retries: int = 0, **options: object) -> WebReader:
    rule = AddressRule(own_hosts=frozenset({source.url.removeprefix("http://")}))
    return WebReader(http=http, rule=rule, backoff=Backoff(retries=retries, sleep=lambda _: None), **options)


def sources_of(source: FileSource, http: httpx.Client, *, retries: int = 0) -> WebSources:
    reader = reader_of(source, http, retries=retries)
    return WebSources(reader, hub_url=source.url, civitai_url=source.url)


def fetched(reader: WebReader, url: str, *, token: str | None = None) -> bytes:
    return b"".join(reader.chunks(url, token=token, where="reference"))


# ---- bytes


def test_file_arrives_whole_through_redirects(source, http):
    source.lies = [Lie(status=302, headers={"Location": "/b?signed=1"})]
    source.files["/b"] = BODY
    assert fetched(reader_of(source, http), source.url + "/a.safetensors") == BODY
    assert [path for path, *_ in source.asked] == ["/a.safetensors", "/b"]


@pytest.mark.parametrize("lie", [Lie(headers=ETAG, sends=30_000), Lie(headers=ETAG, sends=30_000, stalls=True)])
def test_transfer_that_breaks_off_or_stalls_is_taken_up_where_it_did(source, http, lie):
    source.lies = [lie]
    reader = reader_of(source, http, retries=1, **(HASTY if lie.stalls else {}))
    assert fetched(reader, source.url + "/a.safetensors") == BODY
    first, second = source.ranges("/a.safetensors")
    assert first is None and second is not None and second.startswith("bytes=")


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        ([Lie(sends=30_000)], "sent 30000 of 100000 bytes|broke off"),
        ([Lie(sends=30_000, stalls=True)], "stalls"),
        ([Lie(headers=ETAG, sends=30_000), Lie(ignores_range=True)], "cannot go on"),
        ([Lie(headers=ETAG, sends=30_000), Lie(status=200, body=BODY[::-1], ignores_range=True)], "cannot go on"),
        ([Lie(status=503), Lie(status=503)], "answered 503"),
    ],
    ids=["short without a mark", "stall", "range ignored", "changed bytes", "away"],
)
def test_transfer_that_cannot_go_on_is_told_as_unavailable(source, http, lies, words):
    source.lies = lies
    reader = reader_of(source, http, retries=1, **(HASTY if lies[0].stalls else {}))
    with pytest.raises(Unavailable, match=words):
        fetched(reader, source.url + "/a.safetensors")


def test_bytes_that_only_trickle_end_the_transfer(source, http):
    times = iter([0.0, *[PATIENCE_S + 100.0] * 1000])
    reader = reader_of(source, http, monotonic_s=lambda: next(times))
    with pytest.raises(Unavailable, match="bytes have come in 220 s"):
        fetched(reader, source.url + "/a.safetensors")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_source_that_says_no_is_a_fault_of_the_reference(source, http, status):
    source.lies = [Lie(status=status)]
    with pytest.raises(InvalidInput, match=f"answered {status}") as refusal:
        fetched(reader_of(source, http), source.url + "/a.safetensors")
    assert refusal.value.faults[0].where == "reference"


def test_source_that_nobody_answers_for_is_unavailable(http):
    rule = AddressRule(own_hosts=frozenset({"127.0.0.1:9"}))
    with pytest.raises(Unavailable, match="does not answer"):
        fetched(WebReader(http=http, rule=rule, backoff=Backoff(retries=0)), "http://127.0.0.1:9/a")


# ---- addresses

PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "169.254.169.254",
    "192.168.0.1",
    "100.64.0.1",
    "0.0.0.0",  # noqa: S104
    "::1",
    "fd00::1",
    "fe80::1%eth0",
    "::ffff:10.0.0.1",
    "2002:0a00:0001::1",
    "224.0.0.1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_redirect_to_a_private_address_is_refused_before_a_connection(source, http, address):
    rule = AddressRule(own_hosts=frozenset({source.url.removeprefix("http://")}), lookup=lambda host, port: [address])
    source.lies = [Lie(status=302, headers={"Location": "https://inside.example/secret"})]
    with pytest.raises(InvalidInput, match=r"inside\.example is no public address"):
        fetched(WebReader(http=http, rule=rule), source.url + "/a.safetensors")
    assert len(source.asked) == 1


def test_redirect_to_another_port_of_this_machine_is_refused(source, http):
    source.lies = [Lie(status=302, headers={"Location": "http://127.0.0.1:22/"})]
    with pytest.raises(InvalidInput, match="only https:// is"):
        fetched(reader_of(source, http), source.url + "/a.safetensors")


def test_host_with_one_private_address_among_public_ones_is_refused():
    rule = AddressRule(lookup=lambda host, port: ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(InvalidInput, match="no public address"):
        rule.request(httpx.URL("https://mixed.example/a"), {}, where="x")


def test_request_goes_to_the_address_that_was_judged_and_names_the_host():
    asked: list[tuple[str, int]] = []

    def lookup(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["93.184.216.34"]

    request = AddressRule(lookup=lookup).request(httpx.URL("https://example.org:8443/a?b=1"), {}, where="x")
    assert asked == [("example.org", 8443)]
    assert str(request.url) == "https://93.184.216.34:8443/a?b=1"
    assert request.headers["Host"] == "example.org:8443"
    assert request.extensions["sni_hostname"] == "example.org"
    assert request.headers["Connection"] == "close"  # verified for this host, and used for no other


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of models.example alone, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "models.example")])
    begins = datetime(2020, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins.replace(year=2099))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("models.example")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file: Path = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + made.public_bytes(pem))
    return file


def test_tls_verifies_the_name_of_the_host_at_the_address_that_was_judged(certificate: Path) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    rule = AddressRule(lookup=lambda host, port: ["127.0.0.1"], is_public=lambda address: True)
    with (
        file_source(served) as source,
        httpx.Client(verify=ssl.create_default_context(cafile=str(certificate))) as http,
    ):
        source.files["/a.safetensors"] = BODY
        port = source.url.rpartition(":")[2]
        reader = WebReader(http=http, rule=rule, backoff=Backoff(retries=0))
        assert fetched(reader, f"https://models.example:{port}/a.safetensors") == BODY
        with pytest.raises(Unavailable, match=r"certificate is not valid for 'other\.example'"):
            fetched(reader, f"https://other.example:{port}/a.safetensors")


def test_host_that_cannot_be_looked_up_is_unavailable():
    def lookup(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(Unavailable, match="cannot be looked up"):
        AddressRule(lookup=lookup).request(httpx.URL("https://nowhere.example/"), {}, where="x")


@pytest.mark.parametrize("url", ["https://", "https://exa mple/", "https://x:99999999/", "https://\u2603\ud800/"])
def test_text_that_is_no_url_is_a_fault(http, url):
    with pytest.raises((InvalidInput, Unavailable)) as refusal:
        fetched(WebReader(http=http, rule=AddressRule(lookup=lambda host, port: [])), url)
    assert isinstance(refusal.value, InvalidInput)


def test_source_that_redirects_for_ever_is_a_fault(source, http):
    source.lies = [Lie(status=302, headers={"Location": "/a.safetensors"})] * (MOST_REDIRECTS + 2)
    with pytest.raises(InvalidInput, match="redirects more than"):
        fetched(reader_of(source, http), source.url + "/a.safetensors")


def test_token_goes_to_the_source_and_to_no_host_that_it_redirects_to(source, http):
    with file_source() as elsewhere:
        elsewhere.files["/signed"] = BODY
        hosts = {each.url.removeprefix("http://") for each in (source, elsewhere)}
        source.lies = [Lie(status=302, headers={"Location": f"{elsewhere.url}/signed"})]
        reader = WebReader(http=http, rule=AddressRule(own_hosts=frozenset(hosts)))
        assert fetched(reader, source.url + "/a.safetensors", token="secret-token") == BODY
        assert [sent for *_, sent in source.asked] == ["Bearer secret-token"]
        assert [sent for *_, sent in elsewhere.asked] == [None]


# ---- what sources say


def test_url_is_known_by_the_name_of_its_file(source, http):
    found = sources_of(source, http).find(WebFile(url=f"{source.url}/x/a.ckpt?download=1"), token=None, where="x")
    assert (found.name, found.sha256) == ("a.ckpt", None)
    assert source.asked == []


def test_hub_tells_hash_and_size_before_it_redirects(source, http):
    path = "/own/er/resolve/main/sub/a.safetensors"
    source.headers[path] = {"X-Linked-Etag": f'"{SHA256}"', "X-Linked-Size": str(len(BODY)), "Location": "/cdn"}
    source.files |= {path: b"", "/cdn": BODY}
    source.lies = [Lie(status=302), Lie(status=302)]
    sources = sources_of(source, http)
    found = sources.find(model_reference("own/er:sub/a.safetensors"), token="hub-token", where="x")
    assert (found.name, found.sha256, found.size_bytes) == ("a.safetensors", SHA256, len(BODY))
    with sources.open(found, token=None, where="x") as chunks:
        assert b"".join(chunks) == BODY
    assert [(asked, sent) for asked, _, sent in source.asked] == [
        (path, "Bearer hub-token"),
        (path, None),
        ("/cdn", None),
    ]


URN = "urn:air:sdxl:lora:civitai:123@456"
FILE = {
    "id": 9,
    "name": "watercolor.safetensors",
    "sizeKB": 97.65625,
    "type": "Model",
    "primary": True,
    "metadata": {"fp": "fp16", "size": "pruned", "format": "SafeTensor"},
    "hashes": {"AutoV2": "0123456789", "SHA256": SHA256.upper(), "CRC32": "01234567"},
    "downloadUrl": "/api/download/models/456",
}
VERSION = {
    "id": 456,
    "modelId": 123,
    "name": "v1",
    "baseModel": "SDXL 1.0",
    "model": {"name": "Watercolor", "type": "LORA", "nsfw": False},
    "files": [{**FILE, "name": "data.zip", "type": "Training Data", "primary": False, "metadata": {}}, FILE],
    "downloadUrl": "https://civitai.com/api/download/models/456",
}


def civitai(source: FileSource, **changes: object) -> None:
    """Make the source answer as Civitai's REST API documents `GET /api/v1/model-versions/:id`."""
    version = {**VERSION, **changes}
    for each in version["files"]:
        each["downloadUrl"] = f"{source.url}/api/download/models/456"
    source.files |= {
        "/api/v1/model-versions/456": json.dumps(version).encode(),
        "/api/download/models/456": BODY,
    }


def test_civitai_version_is_resolved_to_its_file_hash_and_family(source, http):
    civitai(source)
    sources = sources_of(source, http)
    found = sources.find(model_reference(URN), token="civitai-token", where="x")
    assert (found.name, found.sha256, found.family) == ("watercolor.safetensors", SHA256, ModelFamily.SDXL)
    with sources.open(found, token="civitai-token", where="x") as chunks:
        assert b"".join(chunks) == BODY
    assert {sent for *_, sent in source.asked} == {"Bearer civitai-token"}


@pytest.mark.parametrize(
    ("base_model", "family"),
    [("Pony", ModelFamily.SDXL), ("Illustrious", ModelFamily.SDXL), ("SD 1.5", ModelFamily.SD15), ("Other", None)],
)
def test_civitai_base_models_have_families(source, http, base_model, family):
    civitai(source, baseModel=base_model)
    urn = "urn:air:other:lora:civitai:123@456"
    assert sources_of(source, http).find(model_reference(urn), token=None, where="x").family is family


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modelId": 77}, "is of Civitai's model 77, not 123"),
        ({"baseModel": "Flux.1 D"}, "is made for Flux.1 D"),
        (
            {"files": [{**FILE, "name": "a.ckpt", "metadata": {"format": "PickleTensor"}}]},
            "no .safetensors file, but a.ckpt",
        ),
        ({"files": []}, "no .safetensors file, but no files"),
    ],
)
def test_civitai_version_that_cannot_be_used_is_refused(source, http, changes, words):
    civitai(source, **changes)
    with pytest.raises(InvalidInput, match=words):
        sources_of(source, http).find(model_reference(URN), token=None, where="x")


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"files": "none"}', b"{" + b" " * 5_000_000])
def test_civitai_answer_of_another_form_is_told_as_unavailable(source, http, answer):
    source.files["/api/v1/model-versions/456"] = answer
    with pytest.raises(Unavailable, match="Civitai's answer is"):
        sources_of(source, http).find(model_reference(URN), token=None, where="x")


def test_civitai_version_that_does_not_exist_is_a_fault(source, http):
    with pytest.raises(InvalidInput, match="answered 404"):
        sources_of(source, http).find(model_reference(URN), token=None, where="x")
