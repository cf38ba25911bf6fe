"""Sources of model files that stall, break off, lie about lengths, change bytes or lead elsewhere. Real processes."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.fixtures.chaos_proxy import Trap
from tests.fixtures.model_files import SDXL_LORA, model_file
from tests.system.conftest import PATIENCE_S, until
from tests.system.faults.ordered_pictures import OrderedPictures
from tests.system.faults.processes import free_port
from tests.system.faults.rig import Rig
from tests.system.faults.setup import InstallationSetup
from tests.system.faults.test_picture_faults import QUICK, flipped, fresh

from giornata.agent.transfer.model_store import PARTS
from giornata.domain.errors import GiornataError
from giornata.protocol.models import AddModel

PORT, ELSEWHERE = free_port(), free_port()
HOST = f"127.0.0.1:{PORT}"
GROUND = InstallationSetup(model_hosts=(HOST,))
# Half a megabyte, which arrives in several pieces.
LORA = model_file({name: tuple(64 * side for side in shape) for name, shape in SDXL_LORA.items()})
DRAWN = ["verify sleep=0.01"] * 6
GET = "^/v1/blobs/"


@pytest.fixture(scope="module")
def lora(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a LoRA that every node of this module has to fetch."""
    file = tmp_path_factory.mktemp("lora") / "ink.safetensors"
    file.write_bytes(LORA)
    [sent] = rig.client.upload_files([file])
    yield rig.client.add_model(AddModel(name="ink", sha256=sent.sha256)).name
    rig.client.remove_model("ink")


def order(rig: Rig, lora: str) -> OrderedPictures:
    return OrderedPictures(rig, prompts=DRAWN, loras=[{"name": lora}])


# ---- a node fetches from storage

SPOILED: dict[str, dict[str, Any]] = {
    "breaks off": {"cut_at": 100},
    "sends less": {"spoil": lambda body: body[:-1]},
    "sends other bytes": {"spoil": flipped},
}


@pytest.mark.parametrize("fault", SPOILED)
def test_model_that_does_not_arrive_whole_costs_no_picture(rig: Rig, lora: str, fault: str) -> None:
    fresh(rig)
    trap = rig.storage.set(Trap("GET", GET, **SPOILED[fault]))
    ordered = order(rig, lora)
    rig.start_drawing_node(**QUICK)
    assert trap.caught.wait(PATIENCE_S), ordered.story()
    rig.start_drawing_node(**QUICK)
    ordered.finish()


@pytest.mark.parametrize("next_node", ["another machine", "the same disk"])
def test_node_that_dies_while_it_fetches_a_model_leaves_its_pictures_to_the_next(
    rig: Rig, lora: str, next_node: str
) -> None:
    fresh(rig)
    die_while_fetching(rig, lora, is_same_disk=next_node == "the same disk")


def die_while_fetching(rig: Rig, lora: str, *, is_same_disk: bool) -> None:
    """Kill a node with a part of the model on its disk, and let another one draw."""
    get = rig.bytes.signed
    rig.storage.set(Trap("GET", get, cut_at=len(LORA) // 2))
    rest = rig.storage.set(Trap("GET", get, hold=True))
    ordered = order(rig, lora)
    victim = rig.start_drawing_node(**QUICK)
    assert rest.caught.wait(PATIENCE_S), ordered.story()
    victim.kill_all()
    [part] = (victim.work_dir / "models" / PARTS).iterdir()
    assert 0 < part.stat().st_size <= len(LORA) // 2
    rest.release(cut=True)
    node = rig.start_drawing_node(**QUICK, work_dir=victim.work_dir if is_same_disk else None)
    ordered.finish()
    assert (node.work_dir / "models" / hashlib.sha256(LORA).hexdigest()).read_bytes() == LORA


def test_source_that_stalls_holds_up_its_own_node_alone(rig: Rig, lora: str) -> None:
    fresh(rig)
    trap = rig.storage.set(Trap("GET", GET, hold_reply=True))
    ordered = order(rig, lora)
    rig.start_drawing_node(**QUICK)
    assert trap.caught.wait(PATIENCE_S), ordered.story()
    rig.start_drawing_node(**QUICK)
    until(lambda: ordered.states()["succeeded"], ordered.story)
    trap.release(cut=True)
    ordered.finish()


def test_model_that_is_damaged_on_a_node_is_refused_there_and_the_pictures_are_drawn_elsewhere(
    rig: Rig, lora: str
) -> None:
    fresh(rig)
    node = rig.start_drawing_node(**QUICK)
    order(rig, lora).finish()
    kept = node.work_dir / "models" / hashlib.sha256(LORA).hexdigest()
    kept.chmod(0o600)
    kept.write_bytes(flipped(LORA))
    ordered = order(rig, lora)
    until(lambda: not kept.exists() or kept.read_bytes() == LORA, ordered.story)
    rig.start_drawing_node(**QUICK)
    ordered.finish()


# ---- the server fetches from where a user says


@dataclass
class OddSource:
    """Answers each request with the next of `replies`: functions that write to the socket."""

    replies: list[Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.headers.get("Range", "whole"))
        self.replies.pop(0)(handler)


def reply(body: bytes, *, length: int | None = None, status: int = 200, **headers: str) -> Callable[..., None]:
    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        told = {"Content-Length": str(len(body) if length is None else length)}
        for name, value in (told | {key.replace("_", "-"): each for key, each in headers.items()}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = True

    return write


@pytest.fixture(scope="module")
def listening() -> Iterator[OddSource]:
    source = OddSource()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            source.serve(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield source
    server.shutdown()
    server.server_close()


@pytest.fixture
def source(listening: OddSource) -> OddSource:
    listening.replies.clear()
    listening.asked.clear()
    return listening


def add(rig: Rig, name: str, **more: Any) -> Any:
    reference = f"http://{HOST}/{name}.safetensors"
    return rig.client.add_model(AddModel(name=name, reference=reference, **more))


def test_source_of_the_server_that_breaks_off_is_taken_up_where_it_did(rig: Rig, source: OddSource) -> None:
    half = len(LORA) // 2
    range_of = f"bytes {half}-{len(LORA) - 1}/{len(LORA)}"
    source.replies = [
        reply(LORA[:half], length=len(LORA), ETag='"a"', Accept_Ranges="bytes"),
        reply(LORA[half:], status=206, ETag='"a"', Content_Range=range_of),
    ]
    assert add(rig, "halves").sha256 == hashlib.sha256(LORA).hexdigest()
    assert source.asked == ["whole", f"bytes={half}-"]
    rig.client.remove_model("halves")


REFUSED: dict[str, tuple[Callable[..., None], str]] = {
    "leads to another port of this machine": (
        reply(b"", status=302, Location=f"http://127.0.0.1:{ELSEWHERE}/a.safetensors"),
        "only https:// is",
    ),
    "leads to a private address": (
        reply(b"", status=302, Location="https://127.0.0.1/a.safetensors"),
        "is no public address",
    ),
    "sends a pickle": (reply(b"PK\x03\x04" + bytes(100)), "safetensors"),
    "sends other bytes than were named": (reply(model_file(SDXL_LORA, filler=b"\1")), "sha256"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_source_of_the_server_that_lies_is_refused_and_nothing_is_kept(
    rig: Rig, source: OddSource, fault: str
) -> None:
    answer, words = REFUSED[fault]
    source.replies = [answer]
    stored = rig.bytes.contents()
    with pytest.raises(GiornataError) as refused:
        add(rig, "odd", sha256="0" * 64)
    said = str(refused.value)
    assert words in said, said
    assert len(source.asked) == 1
    assert rig.bytes.contents() == stored
    assert "odd" not in {each.name for each in rig.client.models()}
