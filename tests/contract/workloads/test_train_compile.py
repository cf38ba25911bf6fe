"""Compiled kernels, with a real compiler: what they change, what they do not, and what another process makes of them.

All jobs here have the same shapes, so that kernels are made once; the rest finds them on disk.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from tests.fixtures.kernels import needs_compiler
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.regional import compiler_of
from giornata.workloads.interface import AgentRequest
from giornata.workloads.train.device.compiling import COMPILER_FAILED, KERNELS, Compiler, Speeds
from giornata.workloads.train.device.kernel_cache import KernelCache
from giornata.workloads.train.workload import TrainWorkload

pytestmark = [needs_compiler, pytest.mark.long, pytest.mark.timeout(1200)]

SECRET = b"0123456789abcdef0123456789abcdef"
STEPS = 4
FILE = "lora-kohya.safetensors"
PAYS = {"cpu": Speeds(saved_s=10.0, made_s=1.0, found_s=1.0)}
NEVER = {"cpu": Speeds(saved_s=0.0, made_s=1.0, found_s=1.0)}


@pytest.fixture(scope="module")
def train_rig(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainRig:
    root = tmp_path_factory.mktemp("compile")
    spec = spec_for(tiny_folder, max_train_steps=STEPS, compile="on")
    return TrainRig(root=root, spec=spec, inputs=draw_pictures(root / "in", 3))


@pytest.fixture(scope="module")
def whole(train_rig: TrainRig, kernel_directory: Path) -> RecordingReporter:
    """A job with kernels, on a node that shares them."""
    cache = KernelCache(directory=kernel_directory, secret=SECRET)
    return train_rig.run(workload=TrainWorkload(device="cpu", compiler=Compiler(cache=cache)))


@pytest.fixture(scope="module")
def plain(train_rig: TrainRig) -> RecordingReporter:
    """The same job without."""
    return train_rig.run(spec=train_rig.spec | {"compile": "off"})


def weights(reporter: RecordingReporter) -> dict[str, torch.Tensor]:
    return load(reporter.artifacts[FILE])


def history(reporter: RecordingReporter, step: int = STEPS) -> list[dict[str, Any]]:
    length = int.from_bytes(reporter.checkpoint_bytes[step][:8], "little")
    header = json.loads(reporter.checkpoint_bytes[step][8 : 8 + length])
    return [entry["fingerprint"] for entry in json.loads(header["__metadata__"]["giornata"])["history"]]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def by(speeds: dict[str, Speeds]) -> TrainWorkload:
    return TrainWorkload(device="cpu", compiler=Compiler(speeds=speeds))


def test_kernels_change_the_last_bits_and_stand_in_the_checkpoints(
    train_rig: TrainRig, whole: RecordingReporter, plain: RecordingReporter
) -> None:
    assert not same(weights(whole), weights(plain))
    for step, tolerance in ((1, 1e-5), (2, 1e-3)):  # forward alone; and after one backward pass and update
        assert whole.metrics[step]["loss"] == pytest.approx(plain.metrics[step]["loss"], rel=tolerance)
    (fingerprint,) = history(whole)
    assert fingerprint[KERNELS] == compiler_of(torch.device("cpu"))
    assert KERNELS not in history(plain)[0]
    assert fingerprint["lora_layer"] == history(plain)[0]["lora_layer"] == "slots"


@pytest.mark.parametrize("kept", [True, "selective"])
def test_gradient_checkpointing_changes_no_bit_of_them(
    train_rig: TrainRig, whole: RecordingReporter, kept: Any
) -> None:
    assert same(weights(train_rig.run(spec=train_rig.spec | {"gradient_checkpointing": kept})), weights(whole))


def test_pictures_in_between_are_drawn_without_them(train_rig: TrainRig, whole: RecordingReporter) -> None:
    """Their shapes are others, and would be compiled for nothing; the next step finds the kernels it had."""
    drawing = {"sample_prompts": ["a sks toy"], "sample_steps": 1, "validation_steps": 2}
    usual, _ = compilations_of(train_rig.run)
    made, reporter = compilations_of(lambda: train_rig.run(spec=train_rig.spec | drawing))
    assert made == usual > 0
    assert not reporter.notices
    assert "samples-00000002.png" in reporter.artifacts
    assert same(weights(reporter), weights(whole))
    assert history(reporter) == history(whole)


def compilations_of(run: Callable[[], RecordingReporter]) -> tuple[int, RecordingReporter]:
    """How often torch began to compile; it forgets who wanted to know when the job ends."""
    from torch._dynamo.callback import callback_handler

    begun: list[object] = []
    callback_handler.register_start_callback(begun.append)
    reporter = run()
    return len(begun), reporter


@pytest.mark.parametrize(("at_first", "later", "compiled"), [(PAYS, NEVER, True), (NEVER, PAYS, False)])
def test_compile_auto_keeps_the_choice_of_the_first_attempt_in_later_attempts(
    train_rig: TrainRig, whole: RecordingReporter, plain: RecordingReporter, at_first: Any, later: Any, compiled: bool
) -> None:
    auto = train_rig.spec | {"compile": "auto"}
    first = train_rig.run(
        RecordingReporter(agent_requests={2: AgentRequest.CHECKPOINT_AND_STOP}), workload=by(at_first), spec=auto
    )
    second = train_rig.run(workload=by(later), spec=auto, resume=train_rig.resume_point(first, 2))
    assert not second.notices
    assert same(weights(second), weights(whole if compiled else plain))


def test_kernels_that_were_tampered_with_are_made_anew_and_are_gone_with_their_job(
    train_rig: TrainRig, whole: RecordingReporter, plain: RecordingReporter, tmp_path: Path
) -> None:
    ((key, path),) = whole.cache.items()
    bad = tmp_path / "bad"
    bad.write_bytes(path.read_bytes()[:-1] + b"!")
    reporter, loads = RecordingReporter(cache={key: bad}), list[bytes]()
    cache = KernelCache(directory=tmp_path / "none", secret=SECRET, load=loads.append)
    workload = TrainWorkload(device="cpu", compiler=Compiler(cache=cache))
    again = train_rig.run(reporter, workload=workload)
    assert loads == []
    assert any("not sealed with this node's key" in line for line in again.lines)
    assert again.artifacts == whole.artifacts
    assert again.puts == [key]  # and the bad ones are replaced
    # the warm base is as it was
    assert train_rig.run(workload=workload, spec=train_rig.spec | {"compile": "off"}).artifacts == plain.artifacts


# ---- a compiler that fails


def test_a_compiler_that_fails_costs_auto_nothing_but_the_kernels(train_rig: TrainRig) -> None:
    """Another rank, so that no kernel is there yet."""
    from torch._inductor import config as inductor

    another = train_rig.spec | {"rank": 3, "compile": "auto"}
    with inductor.patch("cpp.cxx", (None, "/no/such/compiler")):
        version = Compiler(version_of=lambda _: "a compiler that is gone", speeds=PAYS)
        fell_back = train_rig.run(workload=TrainWorkload(device="cpu", compiler=version), spec=another)
    assert [name for name, _ in fell_back.notices] == [COMPILER_FAILED]
    (fingerprint,) = history(fell_back)
    assert KERNELS not in fingerprint
    without = train_rig.run(spec=another | {"compile": "off"})
    assert same(weights(fell_back), weights(without))
    assert fell_back.metrics.keys() == without.metrics.keys()


# ---- another process


SECOND = """
import json, sys
from pathlib import Path
from giornata.diffusion.draws.determinism import fix_determinism
from tests.fixtures.train_rig import RecordingReporter
fix_determinism(1)
from giornata.protocol.node.pipe import Start
from giornata.workloads.train.device.compiling import Compiler
from giornata.workloads.train.device.kernel_cache import KernelCache
from giornata.workloads.train.workload import TrainWorkload
start, directory, secret, cache, out = json.loads(sys.stdin.read())
reporter = RecordingReporter(cache={name: Path(path) for name, path in cache.items()})
kernels = KernelCache(directory=Path(directory), secret=secret.encode())
TrainWorkload(device="cpu", compiler=Compiler(cache=kernels)).run(Start.model_validate(start), reporter)
from torch._dynamo.utils import counters
Path(out).write_bytes(reporter.artifacts["lora-kohya.safetensors"])
kinds = ("hit", "miss", "bypass")
seen = {kind: counters["inductor"].get(f"fxgraph_cache_{kind}", 0) for kind in kinds}
seen |= {f"aot_{kind}": counters["aot_autograd"].get(f"autograd_cache_{kind}", 0) for kind in kinds}
print(json.dumps({"seen": seen, "breaks": sum(counters["graph_break"].values()), "lines": reporter.lines,
    "puts": reporter.puts}))
"""


def in_another_process(train_rig: TrainRig, cache: dict[str, Path], directory: Path, secret: bytes = SECRET) -> Any:
    """The job's run in a fresh process with `directory` for its kernels: what it says, and the file that it makes."""
    directory.mkdir()
    out = directory / "out"
    start = train_rig.start().model_dump(mode="json")
    given = [start, str(directory), secret.decode(), {name: str(path) for name, path in cache.items()}, str(out)]
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(directory),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]),
    }
    ran = subprocess.run(
        [sys.executable, "-c", SECOND],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1]), out.read_bytes()


def test_compile_cache_in_another_process_has_no_miss_and_gives_same_bytes(
    train_rig: TrainRig, whole: RecordingReporter, tmp_path: Path
) -> None:
    assert len(whole.puts) == 1
    said, content = in_another_process(train_rig, whole.cache, tmp_path / "there")
    assert content == whole.artifacts[FILE]
    assert said["seen"]["hit"] + said["seen"]["aot_hit"] > 0
    assert said["seen"]["miss"] == said["seen"]["aot_miss"] == 0
    assert said["seen"]["bypass"] == said["seen"]["aot_bypass"] == 0
    assert said["breaks"] == 0
    assert said["puts"] == []  # whoever fetched them has nothing to add
