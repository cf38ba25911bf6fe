"""Whether a job runs as compiled kernels: the arithmetic, what is kept of it, and a node that has no compiler."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.train_rig import RecordingReporter

from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.base.regional import compiler_of, kinds_of_region, regions
from giornata.diffusion.files.checkpoint import Header
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import RETRY, STRIKE, Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import Compile
from giornata.workloads.train.device.compiling import (
    COMPILER_FAILED,
    KERNELS,
    SPEEDS,
    CompiledSteps,
    Compiler,
    Kernels,
    KernelsDiffer,
    KernelTrial,
    Speeds,
)
from giornata.workloads.train.device.graphs import Pass
from giornata.workloads.train.device.kernel_cache import READY, KernelCache, kernel_key, sealed
from giornata.workloads.train.device.memory_budget import MemoryPlan

SECRET = b"0123456789abcdef0123456789abcdef"
TABLE = Speeds(saved_s=0.001, made_s=3.0, found_s=0.5)


def spec_with(**changes: Any) -> TrainSpec:
    fields = {"pretrained_model_name_or_path": "m", "dataset": "ds_1", "seed": 1, "resolution": 64}
    return TrainSpec.model_validate(fields | changes)


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> BaseModel:
    spec = spec_with(pretrained_model_name_or_path=str(tiny_folder))
    return load_base(spec, device=torch.device("cpu"), dtype=torch.float32)


# ---- the arithmetic


@pytest.mark.parametrize(
    ("passes", "at_hand", "pays"),
    [
        (1, False, False),
        (3_000, False, False),  # saves as much as it takes
        (3_001, False, True),
        (500, True, False),
        (501, True, True),
        (1, True, False),
    ],
)
def test_kernels_pay_when_they_save_more_than_they_take(passes: int, at_hand: bool, pays: bool) -> None:
    table = Speeds(saved_s=2**-10, made_s=3000 * 2**-10, found_s=500 * 2**-10)  # exact in binary
    assert CompiledSteps(passes=passes, regions=10, kernels=10).pays(table, at_hand=at_hand) is pays


def test_work_counts_every_pass_of_the_whole_job(base: BaseModel) -> None:
    def work(rows: int, **changes: Any) -> CompiledSteps:
        spec = spec_with(max_train_steps=100, **changes)
        return CompiledSteps.of(base, spec, MemoryPlan(recompute=Recompute.OFF, rows=rows))

    plain = work(1)
    assert plain == CompiledSteps(passes=100, regions=len(regions(base.unet)), kernels=kinds_of_region(base.unet) + 1)
    assert plain.kernels < plain.regions
    assert work(3, gradient_accumulation_steps=4).passes == 200
    classes = {"with_prior_preservation": True, "class_prompt": "a toy"}
    assert work(1, **classes).passes == 200
    assert work(1, **classes, prior_prediction=True).passes == 100
    buckets = {"enable_bucket": True, "resolution": 512}
    assert work(1, **buckets).kernels > plain.kernels


def test_the_table_says_nothing_of_devices_that_nobody_measured() -> None:
    assert set(SPEEDS) == {"cpu"}


# ---- the decision


def version_of(device: torch.device) -> str | None:
    return f"g++ 1.2 for {device.type}"


def none_of(_: torch.device) -> None:
    return None


def kernels_of(
    base: BaseModel,
    reporter: RecordingReporter,
    directory: Path,
    *,
    compiler: Compiler | None = None,
    header: Header | None = None,
    **changes: Any,
) -> Kernels:
    return Kernels(
        compiler or Compiler(version_of=version_of, speeds={"cpu": TABLE}),
        base,
        (spec := spec_with(**changes)),
        MemoryPlan.asked_for(spec),
        layer="slots",
        header=header,
        reporter=reporter,
        directory=directory,
    )


MANY, FEW = 1_000_000, 10


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"compile": "on", "max_train_steps": FEW}, {KERNELS: "g++ 1.2 for cpu"}),
        ({"torch_compile": True, "max_train_steps": FEW}, {KERNELS: "g++ 1.2 for cpu"}),
        ({"compile": "off", "max_train_steps": MANY}, {}),
        ({"torch_compile": False, "max_train_steps": MANY}, {}),
        ({"max_train_steps": MANY}, {KERNELS: "g++ 1.2 for cpu"}),
        ({"max_train_steps": FEW}, {}),
    ],
)
def test_compile_option_and_step_count_decide_whether_job_begins_with_kernels(
    base: BaseModel, tmp_path: Path, changes: dict[str, Any], expected: dict[str, str]
) -> None:
    assert kernels_of(base, RecordingReporter(), tmp_path, **changes).entry == expected


def test_auto_says_what_it_reckoned(base: BaseModel, tmp_path: Path) -> None:
    reporter = RecordingReporter()
    kernels_of(base, reporter, tmp_path, max_train_steps=FEW)
    assert not reporter.lines  # nothing to weigh
    kernels_of(base, reporter, tmp_path, max_train_steps=_between(base))
    kernels_of(base, reporter, tmp_path, max_train_steps=MANY)
    close, clear = reporter.lines
    assert close.startswith("compile auto: off: compiled kernels are expected to save")
    assert clear.startswith("compile auto: on: compiled kernels are expected to save")


def test_auto_is_off_on_a_kind_of_device_that_nobody_measured(base: BaseModel, tmp_path: Path) -> None:
    unmeasured = Compiler(version_of=version_of, speeds={})
    assert kernels_of(base, RecordingReporter(), tmp_path, compiler=unmeasured, max_train_steps=MANY).entry == {}


def _between(base: BaseModel) -> int:
    """So many steps that kernels pay when they are at hand, and only then."""
    return int((kinds_of_region(base.unet) + 1) * 1.5 / (len(regions(base.unet)) * TABLE.saved_s))


def test_kernels_at_hand_pay_sooner(base: BaseModel, tmp_path: Path) -> None:
    compiler = Compiler(version_of=version_of, speeds={"cpu": TABLE}, cache=KernelCache(directory=tmp_path))
    between = _between(base)

    def entry() -> dict[str, str | None]:
        return kernels_of(base, RecordingReporter(), tmp_path, compiler=compiler, max_train_steps=between).entry

    assert entry() == {}
    spec = spec_with(max_train_steps=between)
    version = "g++ 1.2 for cpu"
    compiler.cache.note(kernel_key(base, spec, MemoryPlan.asked_for(spec), layer="slots", compiler=version))
    assert entry() == {KERNELS: version}


# ---- what a resume keeps


def header(fingerprint: dict[str, Any], *, step: int = 5) -> Header:
    return Header(step=step, spec={}, spec_sha256="", data_sha256="", fingerprint=fingerprint, history=())


def test_a_resume_keeps_the_choice_whatever_the_arithmetic_says(base: BaseModel, tmp_path: Path) -> None:
    here = {KERNELS: "g++ 1.2 for cpu"}
    few = kernels_of(base, RecordingReporter(), tmp_path, header=header(here), max_train_steps=FEW)
    assert few.entry == here
    many = kernels_of(base, RecordingReporter(), tmp_path, header=header({}), max_train_steps=MANY)
    assert many.entry == {}


def test_a_resume_says_which_compiler_goes_on(base: BaseModel, tmp_path: Path) -> None:
    before = header({KERNELS: "clang 9"})
    assert kernels_of(base, RecordingReporter(), tmp_path, header=before).entry == {KERNELS: "g++ 1.2 for cpu"}
    done = header({KERNELS: "clang 9"}, step=FEW)
    assert kernels_of(base, RecordingReporter(), tmp_path, header=done, max_train_steps=FEW).entry == {
        KERNELS: "clang 9"
    }


# ---- a node without a compiler


def test_auto_goes_without_a_compiler(base: BaseModel, tmp_path: Path) -> None:
    bare, reporter = Compiler(version_of=none_of, speeds={"cpu": TABLE}), RecordingReporter()
    assert kernels_of(base, reporter, tmp_path, compiler=bare, max_train_steps=MANY).entry == {}
    assert reporter.lines == ["compile auto: off: this node has no compiler"]


def test_auto_that_comes_to_a_node_without_a_compiler_goes_on_and_says_so_ever_after(
    base: BaseModel, tmp_path: Path
) -> None:
    bare = Compiler(version_of=none_of, speeds={"cpu": TABLE})
    before = header({KERNELS: "g++ 1.2 for cpu"})
    entry = kernels_of(base, RecordingReporter(), tmp_path, compiler=bare, header=before).entry
    assert entry == {KERNELS: None}
    assert kernels_of(base, RecordingReporter(), tmp_path, header=header(dict(entry))).entry == {KERNELS: None}


@pytest.mark.parametrize("before", [None, header({KERNELS: "g++ 1.2 for cpu"})])
def test_compile_on_without_compiler_fails_with_retry_on_another_node(
    base: BaseModel, tmp_path: Path, before: Header | None
) -> None:
    bare = Compiler(version_of=none_of)
    with pytest.raises(WorkloadFailed) as caught:
        kernels_of(base, RecordingReporter(), tmp_path, compiler=bare, header=before, compile="on")
    assert caught.value.reason is Reason.CRASHED
    assert RETRY[Reason.CRASHED]
    assert not STRIKE[Reason.CRASHED]
    assert [fault.where for fault in caught.value.faults] == ["spec.compile"]


def test_a_compiler_is_what_can_be_run(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    assert compiler_of(cpu, which=lambda _: None) is None
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert compiler_of(cpu, which=lambda _: str(broken)) is None
    broken.write_text("#!/bin/sh\necho 'g++ (Imagined) 99.1'\necho 'more words'\n")
    assert compiler_of(cpu, which=lambda _: str(broken)) == "g++ (Imagined) 99.1"
    assert compiler_of(torch.device("cuda"), which=lambda _: None) is None


# ---- a compiler that fails


class FailingSteps:
    """Fails at its first call, as torch does when a compiler cannot make what it was asked for."""

    def __init__(self, kernels: Kernels, *, steps_before: int = 0) -> None:
        self.kernels, self.steps_before, self.calls, self.undone = kernels, steps_before, 0, 0

    def __call__(self) -> None:
        from torch._inductor.exc import CppCompileError

        self.calls += 1
        if self.calls == 1:
            for _ in range(self.steps_before):
                self.kernels.settle()
            raise CppCompileError(["g++"], "no space left on device")

    def undo(self) -> None:
        self.undone += 1


def test_auto_makes_the_first_step_again_without_kernels(base: BaseModel, tmp_path: Path) -> None:
    reporter = RecordingReporter()
    kernels = kernels_of(base, reporter, tmp_path, max_train_steps=MANY)
    steps = FailingSteps(kernels)
    kernels.carry_out(steps, undo=steps.undo)
    assert (steps.calls, steps.undone) == (2, 1)
    assert kernels.entry == {}
    ((name, data),) = reporter.notices
    assert name == COMPILER_FAILED
    assert "no space left" in data["message"]


class Differing:
    """Fails at its first call, as the check of the first pass does."""

    def __init__(self) -> None:
        self.calls, self.undone = 0, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise KernelsDiffer("the loss of the first pass by compiled kernels differs")

    def undo(self) -> None:
        self.undone += 1


@pytest.mark.parametrize(("before", "entry"), [(None, {}), (header({KERNELS: "g++ 1.2 for cpu"}), {KERNELS: None})])
def test_kernels_that_differ_are_given_up_by_a_job_that_begins_and_by_one_that_goes_on(
    base: BaseModel, tmp_path: Path, before: Header | None, entry: dict[str, None]
) -> None:
    reporter = RecordingReporter()
    kernels = kernels_of(base, reporter, tmp_path, header=before, max_train_steps=MANY)
    steps = Differing()
    kernels.carry_out(steps, undo=steps.undo)
    assert (steps.calls, steps.undone) == (2, 1)
    assert kernels.entry == entry
    ((name, data),) = reporter.notices
    assert name == COMPILER_FAILED
    assert "differs" in data["message"]


def test_kernel_check_runs_only_for_kernels_chosen_by_auto(base: BaseModel, tmp_path: Path) -> None:
    def checked(**changes: Any) -> bool:
        kernels = kernels_of(base, RecordingReporter(), tmp_path, **changes)
        return isinstance(kernels.checked(Pass.plainly, list), KernelTrial)

    assert checked(max_train_steps=MANY)
    assert not checked(max_train_steps=FEW)  # plain
    assert not checked(max_train_steps=MANY, compile="on")


@pytest.mark.parametrize(
    ("changes", "before", "steps_before"),
    [
        ({"compile": "on"}, None, 0),
        ({"max_train_steps": MANY}, header({KERNELS: "g++ 1.2 for cpu"}), 0),  # an earlier attempt had kernels
        ({"max_train_steps": MANY}, None, 1),  # steps were made with kernels
    ],
)
def test_kernel_error_ends_attempt_unless_auto_is_at_first_step_of_job(
    base: BaseModel, tmp_path: Path, changes: dict[str, Any], before: Header | None, steps_before: int
) -> None:
    kernels = kernels_of(base, RecordingReporter(), tmp_path, header=before, **changes)
    steps = FailingSteps(kernels, steps_before=steps_before)
    with pytest.raises(RuntimeError, match="no space left"):
        kernels.carry_out(steps, undo=steps.undo)
    assert (steps.calls, steps.undone) == (1, 0)


# ---- kernels of other nodes


class Torch:
    """Stands in for torch's two functions."""

    def __init__(self, made: bytes = b"native code") -> None:
        self.made, self.loaded = made, list[bytes]()

    def load(self, content: bytes) -> object:
        self.loaded.append(content)
        return object()

    def save(self) -> tuple[bytes, object]:
        return self.made, object()


def cache_of(torch_: Torch, directory: Path | None, secret: bytes | None = SECRET) -> KernelCache:
    return KernelCache(directory=directory, secret=secret, load=torch_.load, save=torch_.save)


def test_kernel_cache_sealed_by_one_node_is_loaded_by_another_with_the_key(tmp_path: Path) -> None:
    reporter, one, other = RecordingReporter(), Torch(), Torch()
    cache_of(one, None).offer("kernels-1", reporter, tmp_path)
    assert reporter.puts == ["kernels-1"]
    there = cache_of(other, tmp_path / "there")
    assert there.fetch("kernels-1", reporter)
    assert other.loaded == [b"native code"]
    assert there.holds("kernels-1")
    assert not there.holds("kernels-2")
    assert not reporter.lines


def flipped(sealed_: bytes) -> bytes:
    return sealed_[:-1] + bytes([sealed_[-1] ^ 1])


GOOD = sealed(b"native code", "kernels-1", SECRET)


@pytest.mark.parametrize(
    "received",
    [
        sealed(b"native code", "kernels-1", b"another key of another operator!"),
        sealed(b"native code", "kernels-2", SECRET),  # a good file, passed off as something else
        flipped(GOOD),
        GOOD[:-3],
        GOOD + b"x",
        GOOD[1:],
        b"G" + GOOD[1:],
        b"",
        b"native code",
    ],
)
def test_kernel_cache_with_invalid_seal_is_never_loaded(tmp_path: Path, received: bytes) -> None:
    path, machine = tmp_path / "received", Torch()
    path.write_bytes(received)
    reporter, cache = RecordingReporter(cache={"kernels-1": path}), cache_of(machine, tmp_path / "here")
    assert not cache.fetch("kernels-1", reporter)
    assert machine.loaded == []
    assert not cache.holds("kernels-1")
    (line,) = reporter.lines
    assert "compiled here" in line
    path.write_bytes(GOOD)
    assert cache.fetch("kernels-1", reporter)  # and the good one would have been


def test_kernel_cache_without_key_fetches_and_offers_nothing(tmp_path: Path) -> None:
    class Strict(RecordingReporter):
        def cache_get(self, key: str) -> Path | None:
            raise AssertionError(key)

    reporter, machine = Strict(), Torch()
    cache = cache_of(machine, tmp_path, secret=None)
    assert not cache.fetch("kernels-1", reporter)
    cache.offer("kernels-1", reporter, tmp_path)
    assert reporter.puts == []


def test_a_key_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer than"):
        KernelCache(secret=b"secret")


def test_a_full_disk_costs_the_kernels_and_not_the_job(tmp_path: Path) -> None:
    class Full(type(tmp_path)):
        def write_bytes(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    reporter = RecordingReporter()
    cache_of(Torch(), None).offer("kernels-1", reporter, Full(tmp_path))
    assert reporter.puts == []
    assert "No space left" in reporter.lines[0]


def test_kernels_are_looked_up_by_all_that_decides_their_shapes(base: BaseModel) -> None:
    def key(compiler: str = "g++ 1", layer: str = "slots", **changes: Any) -> str:
        spec = spec_with(**changes)
        return kernel_key(base, spec, MemoryPlan.asked_for(spec), layer=layer, compiler=compiler)

    others = [
        key(compiler="g++ 2"),
        key(layer="peft"),
        key(rank=4),
        key(target_modules=("to_q",)),
        key(resolution=128),
        key(train_batch_size=2),
        key(gradient_checkpointing=True),
        key(mixed_precision="no"),
        key(use_dora=True),
    ]
    assert len({key(), *others}) == 1 + len(others)
    assert key() == key(learning_rate=1e-2, max_train_steps=7, dataset="ds_2", compile=Compile.ON)


def test_kernel_cache_note_is_written_among_the_kernels(tmp_path: Path) -> None:
    cache = cache_of(Torch(), tmp_path)
    cache.note("kernels-1")
    assert (tmp_path / READY / "kernels-1").exists()
