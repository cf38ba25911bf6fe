"""The canary finds a device that is wrong in one bit, and no fault with one that is sound."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from giornata.agent.settings import AgentSettings
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.engine.engine import judge
from giornata.engine.kinds import make_workloads
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import CANARY_KIND, CanarySpec
from giornata.workloads.canary.training import SMALL, CanaryRun, check_twins, train
from giornata.workloads.canary.workload import CanaryWorkload, Hardware, check_products
from giornata.workloads.interface import AgentRequest, Outcome, Stopped

CPU = torch.device("cpu")


class CanaryReporter:
    """What the canary says, and from which phase on it is told to stop."""

    def __init__(self, *, stop_in: str | None = None) -> None:
        self.phases: list[str] = []
        self.steps: list[int] = []
        self.losses: list[float] = []
        self.stop_in = stop_in

    def agent_request(self) -> AgentRequest:
        return AgentRequest.CHECKPOINT_AND_STOP if self.stop_in in self.phases else AgentRequest.GO_ON

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        if name not in self.phases:
            self.phases.append(name)

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        self.steps.append(step)
        self.losses.append(metrics["loss"])

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a canary does not say {name}")


def quick(**damage: Any) -> Hardware:
    """A MiB of memory, and a clock that moves a tenth of a second each time that it is read."""
    tenths = itertools.count()
    return Hardware(memory_bytes=2**20, now_s=lambda: next(tenths) / 10, **damage)


def run(
    steps: int = 8, *, listener: CanaryReporter | None = None, hardware: Hardware | None = None, **damage: Any
) -> Outcome:
    start = Start(attempt="att_1", job="job_1", kind=CANARY_KIND, spec={"steps": steps}, directory=Path("/nowhere"))
    return CanaryWorkload(device="cpu", hardware=hardware or quick(**damage)).run(start, listener or CanaryReporter())


def test_a_sound_device_passes_and_its_figures_are_told() -> None:
    listener = CanaryReporter()
    outcome = run(listener=listener, hardware=Hardware())
    assert outcome.step == 8
    assert listener.steps == list(range(1, 9))
    assert listener.losses[-1] < 0.9 * listener.losses[0]
    assert listener.phases == ["multiplying", "checking memory", "training", "training again"]
    assert outcome.summary["bit_equal"] is True
    assert outcome.summary["memory_checked_bytes"] == 2**26
    assert outcome.summary["matmul_tflops"] > 0


def test_the_usual_number_of_steps_passes() -> None:
    """That the loss falls is asked of every canary that the platform makes."""
    outcome = run(CanarySpec().steps)
    assert outcome.summary["last_loss"] < 0.8 * outcome.summary["first_loss"]


def test_a_single_step_need_not_fall() -> None:
    assert run(1).summary["bit_equal"] is True


def flipped(tensor: torch.Tensor, bit: int = 0) -> torch.Tensor:
    """The same numbers, but for one bit of one of them."""
    bits = tensor.detach().contiguous().view(torch.int32).flatten().clone()
    bits[bits.numel() // 2] ^= 1 << bit
    return bits.view(torch.float32).reshape(tensor.shape)


def failure(**hardware: Any) -> WorkloadFailed:
    with pytest.raises(WorkloadFailed) as failed:
        run(**hardware)
    assert failed.value.reason is Reason.NODE_DRIVER
    assert judge(failed.value).device_broken  # no other job is begun in this process
    return failed.value


def test_canary_finds_one_flipped_bit_in_matmul() -> None:
    said = failure(matmul=lambda a, b: flipped(torch.matmul(a, b), bit=20))
    assert "1 of 65536 numbers of a product" in said.message


@pytest.mark.parametrize("bit", [0, 31, 63])
def test_canary_finds_one_flipped_bit_in_device_memory(bit: int) -> None:
    def touch(piece: torch.Tensor) -> None:
        piece[12345] ^= (1 << bit) if bit < 63 else -(2**63)

    said = failure(touch=touch)
    assert (
        f"1 words of the device's memory came back with other bits than were written; one of them at byte {12345 * 8}"
        in said.message
    )
    assert f"bits {1 << bit:#018x}" in said.message


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_bit_that_is_stuck_is_found(stuck: int) -> None:
    def touch(piece: torch.Tensor) -> None:
        piece[777] = piece[777] | 8 if stuck else piece[777] & ~8

    failure(touch=touch)


class OneBentPrediction:
    """Bends the prediction of one step, in the second training alone."""

    def __init__(self, step: int, how: Any) -> None:
        self.step, self.how, self.seen = step, how, 0

    def __call__(self, step: int, prediction: torch.Tensor) -> torch.Tensor:
        if step != self.step:
            return prediction
        self.seen += 1
        return prediction if self.seen == 1 else self.how(prediction)


def nudged(prediction: torch.Tensor) -> torch.Tensor:
    """One number of one prediction is off by a bit; gradients flow as ever."""
    return prediction + (flipped(prediction, bit=22) - prediction.detach())


def test_a_training_that_differs_in_one_number_is_found() -> None:
    assert "the loss of step 3 is" in failure(bend=OneBentPrediction(3, nudged)).message


def test_a_loss_that_is_no_number_is_found() -> None:
    assert "step 2 is nan" in failure(bend=lambda step, p: p * float("nan") if step == 2 else p).message


def test_a_training_that_goes_the_wrong_way_is_found() -> None:
    said = failure(bend=lambda step, p: p + step)
    assert "elsewhere it falls" in said.message


def test_weights_are_compared_to_the_bit() -> None:
    one = train(2, CPU, SMALL, bend=lambda _, p: p, told=lambda *_: None)
    name = next(iter(one.weights))
    other = CanaryRun(losses=one.losses, weights=one.weights | {name: flipped(one.weights[name])})
    check_twins(one, CanaryRun(losses=one.losses, weights=dict(one.weights)))
    with pytest.raises(WorkloadFailed, match=r"1 of .* weights of .* differ"):
        check_twins(one, other)


def test_canary_stops_in_every_phase_when_told_to() -> None:
    for phase in ("checking memory", "training", "training again"):
        with pytest.raises(Stopped):
            run(listener=CanaryReporter(stop_in=phase))


def test_products_are_exact_for_any_order_of_sums() -> None:
    check_products(CPU, 64, lambda a, b: (a.double().flip(1) @ b.double().flip(0)).float())


def test_canary_holds_no_model_and_runs_on_every_built_in_engine() -> None:
    (made,) = make_workloads([CANARY_KIND], "cpu").values()
    assert made.held() == ()
    settings: dict[str, Any] = {"url": "http://x", "key": "k", "machine_id": "m", "name": "n", "work_dir": Path("w")}
    commands = AgentSettings(**settings).engine_commands()
    # One engine, and the first kind is the one that it is kept warm for.
    assert list(commands) == ["train", "generate", "validate", "canary", "audit"]
    assert commands["train"] == commands["generate"] == commands["validate"] == commands["canary"]
    assert "train,generate,validate,canary,audit" in commands["train"]
    own = AgentSettings(**settings, kinds=(), workloads={"x-own": ("program",)}).engine_commands()
    assert list(own) == ["x-own"]  # an engine of somebody else's cannot do it


def test_a_kind_of_your_own_may_also_be_named_among_the_kinds() -> None:
    settings: dict[str, Any] = {"url": "http://x", "key": "k", "machine_id": "m", "name": "n", "work_dir": Path("w")}
    own = {"x-own": ("program",)}
    both = AgentSettings(**settings, kinds=("x-own", "pretrain"), workloads=own)
    assert both.faults() == ()
    commands = both.engine_commands()
    assert commands["x-own"] == ("program",)
    assert (
        "pretrain,canary" in commands["pretrain"]
    )  # and not x-own, which the engine that comes with us would refuse
    alone = AgentSettings(**settings, kinds=("x-own",), workloads=own)
    assert list(alone.engine_commands()) == ["x-own"]


def test_a_kind_of_your_own_without_a_command_is_refused_by_its_name() -> None:
    settings: dict[str, Any] = {"url": "http://x", "key": "k", "machine_id": "m", "name": "n", "work_dir": Path("w")}
    (fault,) = AgentSettings(**settings, kinds=("train", "x-own")).faults()
    assert fault.where == "kinds"
    assert "--workload 'x-own=COMMAND'" in fault.hint
    assert "'x-own'" in fault.message
