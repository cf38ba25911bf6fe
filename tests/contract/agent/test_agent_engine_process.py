"""One engine process: what is refused, and how it ends."""

import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.agent.conftest import COUNT_ENGINE, PRELUDE

from giornata.agent.attempt.events import EngineEnded, EngineMessage, EngineStderr, Event
from giornata.agent.engines.engine_process import EngineProcess
from giornata.agent.engines.engines import EngineBusy, Engines, engine_environment
from giornata.domain.errors import InvalidInput
from giornata.protocol.node.pipe import Log, Progress, Start, WriteCheckpoint

PATIENCE_S = 20.0


class EngineStarter:
    """Starts engines from texts, and ends them all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engines: list[EngineProcess] = []
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def start(self, script: str) -> EngineProcess:
        path = self.directory / f"engine{len(self.engines)}.py"
        path.write_text(PRELUDE + script)
        return self.launch((sys.executable, str(path)))

    def launch(self, command: tuple[str, ...]) -> EngineProcess:
        engine = EngineProcess(command, environment=os.environ, monotonic_s=time.monotonic)
        self.engines.append(engine)
        engine.attach("a", self.events.put)
        return engine

    def next(self) -> Event:
        return self.events.get(timeout=PATIENCE_S)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[EngineStarter]:
    made = EngineStarter(tmp_path)
    yield made
    for engine in made.engines:
        engine.kill()


def test_hello_of_this_protocol_is_taken(starter: EngineStarter) -> None:
    assert starter.start("hello()\nhear()\n").await_hello(PATIENCE_S).kinds == ("x-count",)


def test_hello_of_another_protocol_is_refused_and_the_engine_ended(starter: EngineStarter) -> None:
    engine = starter.start("hello(2)\nhear()\n")
    with pytest.raises(InvalidInput, match="speaks protocol 2; this node speaks 1"):
        engine.await_hello(PATIENCE_S)
    assert not engine.is_alive()


def test_an_engine_that_ends_before_its_hello_is_quoted(starter: EngineStarter) -> None:
    engine = starter.start("sys.exit('no GPU here')")
    with pytest.raises(InvalidInput, match=r"ended with 1 before it said hello \(no GPU here\)"):
        engine.await_hello(PATIENCE_S)


def test_an_engine_without_a_hello_is_not_waited_for(starter: EngineStarter) -> None:
    engine = starter.start("hear()\n")
    with pytest.raises(InvalidInput, match=r"said no hello within 0\.2 s"):
        engine.await_hello(0.2)
    assert not engine.is_alive()


def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"engine /no/such/engine: cannot be started"):
        EngineProcess(("/no/such/engine",), environment={}, monotonic_s=time.monotonic)


def test_the_end_comes_after_the_last_words(starter: EngineStarter) -> None:
    engine = starter.start("hello()\nhear()\nsay('progress', attempt='a', step=1)\nsys.exit('bye')\n")
    engine.await_hello(PATIENCE_S)
    engine.send(WriteCheckpoint(attempt="a"))  # somebody listens by now
    events = [starter.next(), starter.next(), starter.next()]
    assert isinstance(events[-1], EngineEnded)
    assert events[-1].exit_code == 1
    assert EngineStderr(line="bye") in events
    assert any(isinstance(event, EngineMessage) and isinstance(event.message, Progress) for event in events)
    assert list(engine.tail) == ["bye"]


def test_attach_after_engine_ended_receives_engine_ended(starter: EngineStarter) -> None:
    engine = starter.start("hello()\n")
    engine.await_hello(PATIENCE_S)
    assert starter.next() == EngineEnded(exit_code=0)
    engine.attach("a", starter.events.put)
    assert starter.next() == EngineEnded(exit_code=0)


def test_an_engine_that_is_gone_leaves_no_open_file(starter: EngineStarter) -> None:
    """A node outlives many engines, and must not wait for the garbage collector to forget them."""
    before = set(Path("/proc/self/fd").iterdir())
    for script in ("hello()\nsys.exit(3)\n", "hello()\nhear()\n", "sys.exit('no GPU')\n"):
        engine = starter.start(script)
        engine.kill()
        assert isinstance(starter.next(), EngineEnded | EngineStderr)
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_child_process_of_engine_is_killed_with_engine(starter: EngineStarter) -> None:
    engine = starter.start(
        "import subprocess\nhello()\nhear()\nchild = subprocess.Popen(['sleep', '1000'])\n"
        "say('log', attempt='a', line=str(child.pid))\nhear()\n"
    )
    engine.await_hello(PATIENCE_S)
    engine.send(WriteCheckpoint(attempt="a"))  # somebody listens by now
    said = starter.next()
    assert isinstance(said, EngineMessage)
    child = os.pidfd_open(int(said.message.line))
    os.kill(engine.pid, signal.SIGKILL)
    ended, _, _ = select.select([child], [], [], PATIENCE_S)
    assert ended == [child]
    assert starter.next() == EngineEnded(exit_code=-9)


def test_the_end_of_stdin_ends_an_engine_in_the_middle_of_a_job(starter: EngineStarter, tmp_path: Path) -> None:
    engine = starter.launch((sys.executable, str(COUNT_ENGINE)))
    engine.await_hello(PATIENCE_S)
    spec = {"steps": 10**9, "every": 10**9, "step_s": 0.001}
    engine.send(Start(attempt="a", job="j", kind="x-count", spec=spec, directory=tmp_path))
    assert isinstance(starter.next(), EngineMessage)
    engine._outbox.put(None)
    while not isinstance(event := starter.next(), EngineEnded):
        pass
    assert event.exit_code == 0


def test_an_engine_is_kept_while_it_can_do_the_kind(starter: EngineStarter) -> None:
    commands = {"x-count": (sys.executable, str(COUNT_ENGINE)), "x-again": (sys.executable, str(COUNT_ENGINE))}
    engines = Engines(commands=commands, launch=starter.launch, hello_s=PATIENCE_S, stop_grace_s=5.0)
    first = engines.ready()
    assert engines.ready("x-count") is first
    first.kill()
    second = engines.ready()
    assert second is not first
    assert second.is_alive()
    engines.stop()
    assert not second.is_alive()


def test_an_engine_for_another_kind_takes_the_place_of_the_one_before(starter: EngineStarter, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(PRELUDE + "say('hello', protocol=1, pid=1, kinds=['x-other'])\nhear()\n")
    commands = {"x-count": (sys.executable, str(COUNT_ENGINE)), "x-other": (sys.executable, str(other))}
    engines = Engines(commands=commands, launch=starter.launch, hello_s=PATIENCE_S, stop_grace_s=5.0)
    first = engines.ready()
    with pytest.raises(EngineBusy):
        engines.ready("x-other")  # somebody listens to the first
    assert first.is_alive()
    first.detach("a")
    second = engines.ready("x-other")
    assert second is not first
    assert not first.is_alive()
    assert engines.ready() is second


MORTAL = """
from giornata.engine.process_setup import die_with_parent
die_with_parent()
hello()
hear()
say("log", attempt="a", line="alive")
hear()
"""


def test_an_engine_outlives_the_thread_that_wanted_it(starter: EngineStarter) -> None:
    """Linux ends an engine together with the thread that started it, and attempts have threads of their own."""
    commands = {"x-count": (sys.executable, "-c", PRELUDE + MORTAL)}
    engines = Engines(commands=commands, launch=starter.launch, hello_s=PATIENCE_S, stop_grace_s=5.0)
    attempt = threading.Thread(target=engines.ready)
    attempt.start()
    attempt.join()
    engine = engines.ready()
    engine.send(WriteCheckpoint(attempt="a"))
    assert isinstance(starter.next(), EngineMessage)
    engines.stop()


def test_an_engine_that_does_not_know_its_kind_is_refused(starter: EngineStarter) -> None:
    commands = {"x-other": (sys.executable, str(COUNT_ENGINE))}
    engines = Engines(commands=commands, launch=starter.launch, hello_s=PATIENCE_S, stop_grace_s=5.0)
    with pytest.raises(InvalidInput, match="runs jobs of the kinds x-count, not x-other"):
        engines.ready("x-other")


def test_an_engine_gets_what_makes_results_repeatable_and_no_settings_of_the_node() -> None:
    inherited = {"PATH": "/bin", "GIORNATA_NODE_KEY": "secret", "OMP_NUM_THREADS": "64"}
    environment = engine_environment(inherited, threads=2)
    assert environment["PATH"] == "/bin"
    assert "secret" not in environment.values()
    wanted = {"OMP_NUM_THREADS": "2", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "0"}
    wanted |= {"MKL_CBWR": "AUTO,STRICT"}
    assert wanted.items() <= environment.items()


def test_a_jobs_secret_goes_to_the_engine_and_never_comes_back(starter: EngineStarter) -> None:
    """Whatever the engine says of it, in messages or stderr lines: it may stand in the error of some library."""
    token = "hf_NobodyMayEverReadThis/0123456789+="
    engine = starter.start(
        "hello()\n"
        "start = hear()\n"
        "token = start['hub_token']\n"
        "known = len(token) == 37 and token not in str(sys.argv) + str(dict(os.environ))\n"
        "say('log', attempt='a', line=f'{known} {token}')\n"
        "say('failed', attempt='a', reason='crashed', message=f'401 for {token}')\n"
        "sys.exit(f'Traceback: {token}!')\n"
    )
    engine.await_hello(PATIENCE_S)
    start = Start(attempt="a", job="j", kind="x-count", spec={}, directory=Path("/"), hub_token=token)
    assert token not in repr(start) + str(start)
    engine.send(start)
    events = [starter.next() for _ in range(4)]
    assert token not in str(events) + str(engine.tail)
    assert "True [secret]" in str(events)
    assert "401 for [secret]" in str(events)
    assert EngineStderr(line="Traceback: [secret]!") in events


def test_secrets_of_all_jobs_in_the_engine_stay_hidden(starter: EngineStarter) -> None:
    """Jobs that share a batch are at work at the same time; and one secret may begin like another."""
    keys = ["0123456789", "0123456789abcdef", "wandb-key-of-another"]
    engine = starter.start(
        "hello()\n"
        "one, other = hear(), hear()\n"
        "told = [one['hub_token'], one['wandb_api_key'], other['wandb_api_key']]\n"
        "say('log', attempt='a', line='|'.join(told))\n"
    )
    engine.await_hello(PATIENCE_S)
    fields = {"kind": "x-count", "spec": {}, "directory": Path("/")}
    engine.send(Start(attempt="a", job="j", hub_token=keys[0], wandb_api_key=keys[1], **fields))
    engine.send(Start(attempt="b", job="k", wandb_api_key=keys[2], **fields))
    assert "[secret]|[secret]|[secret]'" in str(starter.next())


def test_each_attempt_hears_what_is_said_of_it_and_all_hear_what_is_nobodys(starter: EngineStarter) -> None:
    engine = starter.start(
        "hello()\n"
        "for _ in range(3): hear()\n"
        "say('log', attempt='b', line='of b')\n"
        "say('done', attempt='c', step=1)\n"
        "say('log', attempt='nobody', line='lost')\n"
        "say('seats', key='k', free=2, attempts=['a', 'b'])\n"
        "say('log', attempt='a', line='of a')\n"
        "os.close(1)\n"  # what was said is read before the last words
        "sys.exit('for all')\n"
    )
    engine.await_hello(PATIENCE_S)
    others: dict[str, queue.SimpleQueue[Event]] = {"b": queue.SimpleQueue(), "c": queue.SimpleQueue()}
    for name, events in others.items():
        engine.attach(name, events.put)
    for name in ("a", "b", "c"):
        engine.send(Start(attempt=name, job="j", kind="x-count", spec={}, directory=Path("/")))

    def heard(events: queue.SimpleQueue[Event]) -> tuple[list[str], EngineEnded]:
        said = []
        while not isinstance(event := events.get(timeout=PATIENCE_S), EngineEnded):
            match event:
                case EngineMessage(message=Log() as log):
                    said.append(log.line)
                case EngineMessage():
                    said.append(event.message.type)
                case EngineStderr():
                    said.append(f"stderr: {event.line}")
        return sorted(said), event

    end = EngineEnded(exit_code=1, at_work=("a", "b"))  # c was done
    assert heard(starter.events) == (["of a", "stderr: for all"], end)
    assert heard(others["b"]) == (["of b", "stderr: for all"], end)
    assert heard(others["c"]) == (["done", "stderr: for all"], end)
    assert engine.free_places is not None
    assert (engine.free_places.key, engine.free_places.free) == ("k", 2)


def test_the_secrets_of_all_jobs_are_hidden_also_when_they_are_over(starter: EngineStarter) -> None:
    short, long = "hf_Secret", "hf_SecretOfAnother"
    engine = starter.start(
        "hello()\n"
        "tokens = [hear()['hub_token'] for _ in range(3)]\n"
        "say('done', attempt='a', step=1)\n"
        "say('log', attempt='a', line=f'{tokens[0]} {tokens[1]} {tokens[2]}')\n"
        "sys.exit(f'{tokens[1]} {tokens[0]}')\n"
    )
    engine.await_hello(PATIENCE_S)
    for name, token in (("a", short), ("b", long), ("c", None)):
        start = Start(attempt=name, job="j", kind="x-count", spec={}, directory=Path("/"), hub_token=token)
        engine.send(start)
    events = [starter.next() for _ in range(4)]
    assert "line='[secret] [secret] None'" in str(events)
    assert EngineStderr(line="[secret] [secret]") in events
    assert short not in str(events) + str(engine.tail)
