"""Where a node keeps compiled kernels, and who gets the key by which they are shared."""

import stat
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from giornata.agent.engines.engines import KernelDir, engine_environment
from giornata.agent.main import launch
from giornata.agent.settings import AgentSettings, engine_command
from giornata.agent.work_dir import KERNEL_DIRECTORY, WorkDir
from giornata.engine.__main__ import kernel_place

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return AgentSettings(
        url="http://server", key="k", machine_id="m", name="n", work_dir=tmp_path, compile_cache_key=KEY
    )


def test_kernels_outlive_the_process_in_a_directory_that_nobody_else_reads(
    settings: AgentSettings, tmp_path: Path
) -> None:
    place = WorkDir(tmp_path)
    directory = settings.kernels().directory
    assert directory == tmp_path / KERNEL_DIRECTORY
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (directory / "kernel").touch()
    place.close()
    WorkDir(tmp_path).close()
    assert (directory / "kernel").exists()


def test_kernels_over_their_bound_are_thrown_away_by_the_next_node_and_under_nobodys_feet(tmp_path: Path) -> None:
    running = WorkDir(tmp_path)
    kernel = tmp_path / KERNEL_DIRECTORY / "ab" / "kernel.so"
    kernel.parent.mkdir()
    kernel.write_bytes(b"x" * 1000)
    WorkDir(tmp_path, kernels_bytes=999).close()
    assert kernel.exists()  # another process runs
    running.close()
    WorkDir(tmp_path, kernels_bytes=1000).close()
    assert kernel.exists()
    WorkDir(tmp_path, kernels_bytes=999).close()
    assert list((tmp_path / KERNEL_DIRECTORY).iterdir()) == []


def test_a_key_alone_shares_nothing(settings: AgentSettings) -> None:
    assert settings.kernels().key is None
    sharing = replace(settings, shared_compile_cache=True)
    assert sharing.kernels().key == KEY
    assert sharing.faults() == ()
    assert KEY not in repr(sharing) + repr(sharing.kernels())


@pytest.mark.parametrize("key", [None, "", KEY[:-1]])
def test_sharing_needs_a_key_that_cannot_be_guessed(settings: AgentSettings, key: str | None) -> None:
    sharing = replace(settings, shared_compile_cache=True, compile_cache_key=key)
    assert [fault.where for fault in sharing.faults()] == ["compile_cache_key"]


def test_engine_environment_drops_inherited_torch_compiler_variables(tmp_path: Path) -> None:
    """It would change kernels, or fetch them from somewhere."""
    inherited = {"PATH": "/bin", "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "TORCHINDUCTOR_CACHE_DIR": "/tmp/x"}
    inherited |= {"TORCHDYNAMO_DISABLE": "1", "GIORNATA_COMPILE_CACHE_KEY": KEY}
    plain = engine_environment(inherited, threads=1)
    assert not [name for name in plain if name.startswith(("TORCHINDUCTOR", "TORCHDYNAMO", "GIORNATA"))]
    made = engine_environment(inherited, threads=1, kernels=KernelDir(directory=tmp_path))
    assert made.keys() - plain.keys() == {"TORCHINDUCTOR_CACHE_DIR"}
    assert made["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)


def test_the_engine_takes_the_key_out_of_what_its_children_inherit(tmp_path: Path) -> None:
    environment = engine_environment({}, threads=1, kernels=KernelDir(directory=tmp_path, key=KEY))
    place = kernel_place(environment)
    assert (place.directory, place.secret) == (tmp_path, KEY.encode())
    assert KEY not in environment.values()
    assert KEY not in repr(place)
    nothing = kernel_place({})
    assert (nothing.directory, nothing.secret) == (None, None)


SAY_ENVIRONMENT = """
import json, os, sys
hello = {"type": "hello", "protocol": 1, "pid": os.getpid(), "kinds": ["x-a"]}
print(json.dumps(hello | {"versions": {"seen": os.environ.get("GIORNATA_COMPILE_CACHE_KEY", "nothing")}}), flush=True)
sys.stdin.read()
"""


def test_engines_of_own_kinds_do_not_get_the_key(settings: AgentSettings, tmp_path: Path) -> None:
    room = KernelDir(directory=tmp_path, key=KEY)
    environment: Mapping[str, str] = {"PATH": "/bin:/usr/bin"}
    command = (sys.executable, "-c", SAY_ENVIRONMENT)
    engine = launch(command, environment=environment, threads=1, clock_s=lambda: 0.0, kernels=room)
    try:
        assert engine.await_hello(60.0).versions == {"seen": "nothing"}
    finally:
        engine.kill()
    built_in = (*engine_command(("train",), threads=1, device="cpu"), "--help")
    told = launch(built_in, environment=environment, threads=1, clock_s=lambda: 0.0, kernels=room)
    environ = Path(f"/proc/{told.pid}/environ")
    try:
        assert not environ.exists() or f"GIORNATA_COMPILE_CACHE_KEY={KEY}".encode() in environ.read_bytes()
    finally:
        told.kill()
