"""A lease of pictures at every phase: its node is killed, its connection is cut, storage lies. Real processes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.chaos_proxy import Trap
from tests.system.conftest import PATIENCE_S
from tests.system.faults.ordered_pictures import OrderedPictures, PromptGate
from tests.system.faults.phases import ATTEMPT, CLAIM
from tests.system.faults.rig import Rig

PICTURES = ["sleep=0.01"] * 6
QUICK = {"max_pictures": 4, "companion_every_s": 0.2}
PUT = "^/v1/blobs/"


def report(**what: bool) -> Trap:
    """The first report of results."""
    return Trap("POST", f"{ATTEMPT}/pictures$", **what)


def urls(**what: bool) -> Trap:
    """The first request for upload URLs."""
    return Trap("POST", f"{ATTEMPT}/picture-uploads$", **what)


# Where the world stands still when the node is killed.
PHASES: dict[str, tuple[bool, Callable[[], Trap]]] = {
    "claimed": (False, lambda: Trap("POST", CLAIM, hold_reply=True)),
    "asking for upload URLs": (False, lambda: urls(hold=True)),
    "upload URLs on their way": (False, lambda: urls(hold_reply=True)),
    "drawn, not uploaded": (True, lambda: Trap("PUT", PUT, hold=True)),
    "uploaded, not reported": (False, lambda: report(hold=True)),
    "reported, not acknowledged": (False, lambda: report(hold_reply=True)),
}


def fresh(rig: Rig) -> None:
    """No trap, and no node of a test before."""
    for proxy in rig.proxies():
        proxy.clear()
    for node in rig.nodes:
        if node.process.poll() is None:
            node.end()


@pytest.mark.parametrize("phase", PHASES)
def test_pictures_of_a_node_that_dies_are_drawn_by_another(rig: Rig, phase: str) -> None:
    fresh(rig)
    by_storage, trap_of = PHASES[phase]
    trap = trap_of()
    order = OrderedPictures(rig, prompts=PICTURES)
    (rig.storage if by_storage else rig.control).set(trap)
    victim = rig.start_drawing_node(**QUICK)
    assert trap.caught.wait(PATIENCE_S), order.story()
    victim.kill_all()
    rig.start_drawing_node(**QUICK)
    trap.release(cut=True)
    order.finish()


CUTS = {
    "a report that arrived": (False, lambda: report(drop_reply=True)),
    "a report on its way": (False, lambda: report(drop=True)),
    "an upload that arrived": (True, lambda: Trap("PUT", PUT, drop_reply=True, times=2)),
    "upload URLs on their way": (False, lambda: urls(drop_reply=True)),
    "a request for upload URLs": (False, lambda: urls(drop=True)),
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_connection_that_is_cut_costs_no_picture(rig: Rig, cut: str) -> None:
    fresh(rig)
    by_storage, trap_of = CUTS[cut]
    trap = (rig.storage if by_storage else rig.control).set(trap_of())
    order = OrderedPictures(rig, prompts=PICTURES)
    rig.start_drawing_node(**QUICK)
    order.finish()
    assert trap.caught.is_set()


def flipped(body: bytes) -> bytes:
    """One bit is another."""
    return bytes([body[0] ^ 1]) + body[1:]


LIES = {
    "other bytes arrive": {"spoil_request": flipped},
    "nothing is kept": {"status": 200},
    "the URL has run out": {"status": 403},
    "out of order": {"status": 503, "times": 2},
}


@pytest.mark.parametrize("lie", LIES)
def test_storage_that_lies_costs_no_picture(rig: Rig, lie: str) -> None:
    fresh(rig)
    trap = rig.storage.set(Trap("PUT", PUT, **LIES[lie]))
    order = OrderedPictures(rig, prompts=PICTURES)
    rig.start_drawing_node(**QUICK)
    order.finish()
    assert trap.caught.is_set()


def test_pictures_of_an_engine_that_is_killed_are_drawn_once(rig: Rig, tmp_path: Path) -> None:
    fresh(rig)
    gate = PromptGate(tmp_path)
    node = rig.start_drawing_node(**QUICK)
    order = OrderedPictures(rig, prompts=[*PICTURES[:2], gate.word, *PICTURES[3:]])
    gate.pid()
    node.kill_engine()
    gate.open()
    order.finish()


def test_a_node_that_is_told_to_go_gives_its_pictures_to_another(rig: Rig, tmp_path: Path) -> None:
    fresh(rig)
    gate = PromptGate(tmp_path)
    node = rig.start_drawing_node(**QUICK)
    order = OrderedPictures(rig, prompts=[*PICTURES[:2], gate.word, *PICTURES[3:]])
    gate.pid()
    node.process.terminate()
    gate.open()
    assert node.process.wait(PATIENCE_S) == 0
    rig.start_drawing_node(**QUICK)
    order.finish()
