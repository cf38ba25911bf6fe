"""The engine as a process of its own: its streams, its start, its end."""

import subprocess
import sys

PATIENCE_S = 60


def python(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_prints_do_not_break_the_pipe() -> None:
    script = """
import os, subprocess, sys
from giornata.engine.assignment import PipeWriter
from giornata.engine.process_setup import take_stdout
from giornata.protocol.node.pipe import Alive
print("before")
channel = PipeWriter(take_stdout())
print("a print")
sys.stdout.flush()
os.write(1, b"a write of a C library\\n")
subprocess.run(["echo", "a child"])
channel.send(Alive())
"""
    done = python("-c", script)
    assert done.stdout.splitlines() == ["before", '{"type":"alive"}']
    assert set(done.stderr.splitlines()) == {"a print", "a write of a C library", "a child"}


def test_an_unknown_kind_is_refused_clearly_and_without_torch() -> None:
    done = python("-X", "importtime", "-m", "giornata.engine", "--kinds", "train,bake")
    assert done.returncode == 64
    assert "no kind 'bake' (train, generate, preprocess, validate, audit, pretrain, canary)" in done.stderr
    assert "torch" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_the_contract_of_workloads_loads_no_torch() -> None:
    script = "import giornata.engine.engine, giornata.engine.kinds, sys; print('torch' in sys.modules)"
    assert python("-c", script).stdout == "False\n"
