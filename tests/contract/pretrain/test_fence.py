"""A storage has one owner, which others refuse to work beside, and whose death they notice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.contract.pretrain.test_storage import on_s3
from tests.fixtures.pretrain_feeds import run_of, tiny_config

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.fence import (
    BEAT_S,
    DEAD_S,
    OWNER,
    FenceClock,
    check,
    claim,
    holding,
    read_tagged,
    write_if,
)
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.committed import committed
from giornata.pretrain.training.loop import train

BEGAN_MS = 1_800_000_000_000
HELD_BY_ANOTHER = """
import sys, time
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.data.fence import claim
claim(Storage.at(sys.argv[1]), "run")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage.at(tmp_path) if request.param == "folder" else on_s3(request.getfixturevalue("seaweed"))


class Times:
    """A clock that goes on by waiting, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.waited_s, self._meanwhile = 0.0, meanwhile

    def clock(self) -> FenceClock:
        return FenceClock(now_ms=lambda: BEGAN_MS + round(self.waited_s * 1000), wait=self.wait)

    def wait(self, seconds: float) -> None:
        self.waited_s += seconds
        self._meanwhile()


def on_another_machine(storage: Storage) -> None:
    content, tag = read_tagged(storage, OWNER) or (b"{}", "")
    record = json.loads(content) | {"machine": "node-7 another boot"}
    assert write_if(storage, OWNER, json.dumps(record).encode(), tag)


def test_a_write_succeeds_only_on_what_was_seen(place: Storage) -> None:
    assert read_tagged(place, "x") is None
    first = write_if(place, "x", b"one", None)
    assert first is not None
    assert write_if(place, "x", b"two", None) is None
    assert write_if(place, "x", b"two", first) is not None
    assert write_if(place, "x", b"three", first) is None
    found = read_tagged(place, "x")
    assert found is not None
    assert found[0] == b"two"
    assert write_if(place, "never", b"three", first) is None


def test_the_later_command_is_refused_with_who_holds_it_and_since_when(place: Storage) -> None:
    times = Times()
    with holding(place, "encode", clock=times.clock()) as held:
        with pytest.raises(InvalidInput) as refused:
            claim(place, "run", times.clock())
        (fault,) = refused.value.faults
        assert f"is held by giornata pretrain encode (process {os.getpid()} on " in fault.message
        assert fault.message.endswith("since 2027-01-15 08:00:00 UTC")
        assert times.waited_s == 0, "a process of this machine is looked at, not waited for"
        check(place, held.token)
    check(place, claim(place, "run", times.clock()).token)


def test_claim_of_storage_renewed_by_owner_on_another_machine_is_refused(tmp_path: Path) -> None:
    storage, steady = Storage.at(tmp_path), Times()
    held = claim(storage, "run", steady.clock())

    def renewed() -> None:
        if times.waited_s >= BEAT_S:
            held.tag = (read_tagged(storage, OWNER) or (b"", ""))[1]
            held.record["machine"] = "node-7 another boot"
            held.renew()

    on_another_machine(storage)
    times = Times(renewed)
    with pytest.raises(InvalidInput, match="is held by giornata pretrain run"):
        claim(storage, "run", times.clock())
    assert times.waited_s == BEAT_S


@pytest.mark.parametrize("skew_s", [0, 7200, -3600])
def test_claim_of_storage_not_renewed_by_owner_on_another_machine_takes_it_over(tmp_path: Path, skew_s: int) -> None:
    storage, times = Storage.at(tmp_path), Times()
    former = claim(storage, "run", FenceClock(now_ms=lambda: BEGAN_MS + 1000 * skew_s))
    on_another_machine(storage)
    later = claim(storage, "run", times.clock())
    assert times.waited_s == pytest.approx(0 if skew_s < -DEAD_S else DEAD_S + 1)
    check(storage, later.token)
    with pytest.raises(InvalidInput, match="was taken over by giornata pretrain run"):
        check(storage, former.token)
    with pytest.raises(InvalidInput, match="was taken over"):
        former.renew()
    check(storage, later.token)


def test_owner_paused_too_long_loses_storage_and_is_told_at_renewal(tmp_path: Path) -> None:
    storage, times = Storage.at(tmp_path), Times()
    former = claim(storage, "run", times.clock())
    times.waited_s = DEAD_S + 1
    later = claim(storage, "ingest", times.clock())
    with pytest.raises(InvalidInput, match="was taken over by giornata pretrain ingest"):
        former.renew()
    later.renew(ended=True)
    with pytest.raises(InvalidInput, match="was taken over"):
        former.renew(ended=True)


def test_storage_of_killed_owner_is_taken_over_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HELD_BY_ANOTHER, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        now = FenceClock(now_ms=lambda: time.time_ns() // 1_000_000, wait=pytest.fail)
        with pytest.raises(InvalidInput, match=f"process {owner.pid} on"):
            claim(Storage.at(tmp_path), "run", now)
        owner.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet asked for
        check(Storage.at(tmp_path), claim(Storage.at(tmp_path), "encode", now).token)


def taken_over() -> None:
    raise InvalidInput([Fault(where="run", message="was taken over")])


@pytest.mark.parametrize(("asked_before", "written"), [(0, False), (1, True)])
def test_a_run_that_was_taken_over_commits_no_checkpoint(tmp_path: Path, asked_before: int, written: bool) -> None:
    """Neither when it begins one, nor when it was taken over while one was written."""
    config, place = tiny_config(tmp_path), Storage.at(tmp_path)
    times = iter(range(100))

    def fence() -> None:
        if next(times) >= asked_before:
            taken_over()

    run = replace(run_of(config, tmp_path), storage=place, fence=fence)
    with pytest.raises(InvalidInput, match=r"step-00000002-phase-0: is not written: .*was taken over"):
        train(run)
    assert list(committed(place)) == []
    assert any(name.endswith(".safetensors") for name in place.names("checkpoints")) is written


def test_the_trainers_fence_is_the_commands_record(tmp_path: Path) -> None:
    config, place = tiny_config(tmp_path), Storage.at(tmp_path)
    former, times = claim(place, "run", Times().clock()), Times()
    times.waited_s = DEAD_S + 1
    claim(place, "run", times.clock())
    run = replace(run_of(config, tmp_path), storage=place, fence=partial(check, place, former.token))
    with pytest.raises(InvalidInput, match=r"was taken over by giornata pretrain run"):
        train(run)
