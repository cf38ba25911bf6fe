"""Passes by graph: which kinds get one, what the check finds, and what is left when graphs are given up."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.rerun_graphs import RULES, RerunGraph, RerunRecorder

from giornata.diffusion.base.cuda_graphs import Graph, Recorder, Tensors, recorder_of
from giornata.diffusion.base.recompute import Recompute
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.device.graph_conditions import (
    CONDITIONS,
    GRAPHS_OFF,
    Capturing,
    alone_bytes,
    together_bytes,
)
from giornata.workloads.train.device.graphs import Graphs, Pass, Rules, Watched, same_bytes
from giornata.workloads.train.device.memory_budget import (
    CONTEXT_BYTES,
    GRAPH_BYTES,
    MemoryBudget,
    MemoryPlan,
    MemorySizes,
)

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"
SPEED_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "training-speed.md"


@dataclass
class Learning:
    """A weight that follows its inputs by gradient descent with momentum, and the graphs of its passes."""

    recorder: Recorder | None = None
    rules: Rules = RULES
    said: list[str] = field(default_factory=list)
    fails: set[int] = field(default_factory=set)
    calls: int = 0

    def __post_init__(self) -> None:
        self.weight = torch.linspace(-1.0, 1.0, 8).requires_grad_()
        self.weight.grad = torch.zeros_like(self.weight)
        self.momentum = torch.zeros(8)
        watched = Watched(gradients=lambda: [self.weight.grad], kept=lambda: [self.weight, self.momentum])
        self.graphs = Graphs(recorder=self.recorder, watched=watched, given_up=self.said.append, rules=self.rules)

    def work(self, share: float, inputs: Tensors) -> torch.Tensor:
        self.calls += 1
        if self.calls in self.fails:
            raise torch.cuda.OutOfMemoryError(OUT_OF_MEMORY)
        loss = ((self.weight * inputs["x"]).sin() - inputs["y"]).square().mean() * share
        loss.backward()
        return loss.detach()

    def one_pass(self, number: int, rows: int = 3, share: float = 1.0) -> Pass:
        made = torch.Generator().manual_seed(number)
        inputs = {name: torch.randn(rows, 8, generator=made) for name in ("x", "y")}
        return Pass(inputs=inputs, run=partial(self.work, share), fixed=share)

    def step(self, number: int, **kind: Any) -> torch.Tensor:
        loss = self.graphs.run(self.one_pass(number, **kind))
        with torch.no_grad():
            self.momentum.mul_(0.9).add_(self.weight.grad)
            self.weight.sub_(self.momentum, alpha=0.1)
            self.weight.grad.zero_()
        return loss


def plain(kinds: list[dict[str, Any]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    learning = Learning()
    return [learning.step(number, **kind) for number, kind in enumerate(kinds)], learning.weight


def follows(learning: Learning, kinds: list[dict[str, Any]]) -> bool:
    """Whether losses, looked at when all steps are done, and the weight have the bytes of plain passes."""
    losses = [learning.step(number, **kind) for number, kind in enumerate(kinds)]
    wanted, weight = plain(kinds)
    return same_bytes([*losses, learning.weight], [*wanted, weight])


def test_passes_by_graph_have_the_bytes_of_plain_ones() -> None:
    """Two kinds by size and two by share, from copies of inputs that are spoiled after each replay."""
    kinds = [{"rows": 2}, {"rows": 3}, {"rows": 3, "share": 0.5}] * 6
    learning = Learning(recorder := RerunRecorder())
    assert follows(learning, kinds)
    assert len(recorder.graphs) == 3
    # Of each kind: one pass before its graph, two that are checked, three by graph alone.
    assert learning.graphs.facts() == {"passes": 18, "by_graph": 9, "why_not": None}
    assert not learning.said


def test_passes_without_graph_recorder_are_plain() -> None:
    learning = Learning()
    assert follows(learning, [{}] * 5)
    assert learning.graphs.by_graph == 0


# ---- what the check finds


@dataclass
class Frozen(RerunGraph):
    """An input that was not copied in: the values that it was recorded with stay."""

    def __post_init__(self) -> None:
        self.inputs = {name: each.clone() for name, each in self.inputs.items()}


@dataclass
class Twice(RerunGraph):
    """Adds to the gradients twice."""

    def replay(self) -> torch.Tensor:
        before = {name: each.clone() for name, each in self.inputs.items()}
        super().replay()
        for name, each in before.items():
            self.inputs[name].copy_(each)
        return super().replay()


@dataclass
class Rounded(RerunGraph):
    """A loss whose last bit is another."""

    def replay(self) -> torch.Tensor:
        return torch.nextafter(super().replay(), torch.tensor(9.0))


@dataclass
class Refused(RerunGraph):
    def replay(self) -> torch.Tensor:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def moves(learning: Learning) -> Callable[..., Graph]:
    @dataclass
    class Moves(RerunGraph):
        """Changes a weight."""

        def replay(self) -> torch.Tensor:
            with torch.no_grad():
                learning.momentum[3] += 1e-6
            return super().replay()

    return Moves


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (Frozen, "losses of a pass by graph differ"),
        (Twice, "gradients of a pass by graph differ"),
        (Rounded, "losses of a pass by graph differ"),
        (moves, "weights or moments of a pass by graph differ"),
        (Refused, "RuntimeError: CUDA error: operation not permitted"),
    ],
)
def test_faulty_cuda_graph_is_undone_and_reported_once(mistake: Any, said: str) -> None:
    learning = Learning(recorder := RerunRecorder())
    recorder.make = mistake(learning) if mistake is moves else mistake
    assert follows(learning, [{"rows": 2}, {"rows": 3}] * 6)
    assert len(learning.said) == 1
    assert learning.said[0].startswith(said)
    assert learning.graphs.facts() == {"passes": 12, "by_graph": 0, "why_not": learning.said[0]}
    assert recorder.released == 1


def test_a_recording_that_breaks_off_leaves_no_trace() -> None:
    """In its second run, when the first has added to the gradients. Two plain passes come before."""
    learning = Learning(RerunRecorder(), fails={4})
    assert follows(learning, [{}] * 5)
    assert learning.said == [f"OutOfMemoryError: {OUT_OF_MEMORY}"]


def test_memory_that_gives_out_in_a_plain_pass_is_taken_from_the_graphs() -> None:
    """In the second check, where graphs hold memory already."""
    learning = Learning(RerunRecorder(), fails={6})
    assert follows(learning, [{}] * 5)
    assert learning.said == [f"out of memory: {OUT_OF_MEMORY}"]
    assert learning.graphs.by_graph == 0


def test_memory_that_gives_out_without_graphs_is_not_theirs_to_handle() -> None:
    learning = Learning(RerunRecorder(), fails={2})  # the plain pass beside which the first graph would be recorded
    learning.step(0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        learning.step(1)
    assert learning.graphs.why_not is None


def test_bytes_are_compared_and_not_values() -> None:
    one, other = torch.tensor([0.0, float("nan")]), torch.tensor([-0.0, float("nan")])
    assert same_bytes([one], [one.clone()])
    assert not same_bytes([one], [other])
    assert not same_bytes([one], [])
    assert same_bytes([one.bfloat16(), torch.ones(2, 3).t()], [one.bfloat16(), torch.ones(2, 3).t()])


# ---- which kinds of passes have one


def test_no_more_graphs_are_kept_than_the_bound_and_those_of_the_most_used() -> None:
    rules = Rules(worth_steps=1, checks=2, most=2)
    kinds = [{"rows": 1}, {"rows": 2}] * 2 + [{"rows": 3}] * 9 + [{"rows": 1}, {"rows": 2}]
    learning = Learning(recorder := RerunRecorder(), rules=rules)
    assert follows(learning, kinds)
    # The third kind took the place of the first when it was used twice as often, and the first has not come back.
    assert [next(iter(graph.inputs.values())).shape[0] for graph in recorder.graphs] == [1, 2, 3]
    assert len(learning.graphs._held) == 2


def test_graphs_that_are_forgotten_are_recorded_anew() -> None:
    learning = Learning(recorder := RerunRecorder())
    kinds = [{}] * 6
    losses = [learning.step(number) for number in range(3)]
    learning.graphs.forget()
    assert recorder.released == 1
    losses += [learning.step(number) for number in range(3, 6)]
    wanted, weight = plain(kinds)
    assert same_bytes([*losses, learning.weight], [*wanted, weight])
    assert len(recorder.graphs) == 2


def test_release_says_whether_graphs_held_memory() -> None:
    learning = Learning(RerunRecorder())
    learning.step(0)
    assert not Learning(RerunRecorder()).graphs.release("out of memory")
    learning.step(1)
    assert learning.graphs.release("out of memory in step 3")
    assert not learning.graphs.release("again")
    assert learning.said == ["out of memory in step 3"]


# ---- conditions


def spec_with(**changes: Any) -> TrainSpec:
    fields = {"pretrained_model_name_or_path": "m", "dataset": "ds_1", "seed": 1, "max_train_steps": 500}
    return TrainSpec.model_validate(fields | changes)


@dataclass
class ToldPasses:
    notices: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def graphs_of(spec: TrainSpec, told: ToldPasses, **changes: Any) -> Graphs:
    device = changes.pop("device", CUDA)
    of_device = {CUDA: RerunRecorder(), CPU: None}
    facts = {"steps_left": 500, "need_bytes": 0, "budget": None, **changes}
    return Capturing(recorder_of=of_device.__getitem__).graphs(
        device,
        spec,
        Watched(gradients=list, kept=list),
        notice=lambda name, data: told.notices.append((name, data)),
        log=told.lines.append,
        **facts,
    )


ROOM = MemoryBudget(total_bytes=10 * 2**30)
REASONS: list[tuple[str, TrainSpec, dict[str, Any], str]] = [
    ("cuda_graphs", spec_with(cuda_graphs=False), {}, "cuda_graphs is off"),
    ("device", spec_with(), {"device": CPU}, "the steps run on cpu, and only cuda has graphs"),
    (
        "text encoders",
        spec_with(train_text_encoder=True),
        {},
        "train_text_encoder: captions become tokens on the CPU",
    ),
    (
        "text encoders",
        spec_with(train_text_encoder_ti=True, instance_prompt="TOK"),
        {},
        "train_text_encoder_ti: captions become tokens on the CPU",
    ),
    ("steps", spec_with(), {"steps_left": 49}, "49 steps are left, and auto wants 50"),
    (
        "dropouts",
        spec_with().model_copy(update={"network_dropout": 0.1}),
        {},
        "network_dropout: a dropout is drawn within each pass",
    ),
    (
        "memory",
        spec_with(),
        {"budget": ROOM, "need_bytes": 9 * 2**30},
        "memory: steps by graph are expected to take 9.0 GiB, and the device has room for 8.8 GiB",
    ),
]


@pytest.mark.parametrize(("name", "spec", "changes", "why_not"), REASONS, ids=[each[0] for each in REASONS])
def test_reason_against_cuda_graphs_is_logged_unless_quiet(
    name: str, spec: TrainSpec, changes: dict[str, Any], why_not: str
) -> None:
    told = ToldPasses()
    found = graphs_of(spec, told, **changes).why_not
    assert found is not None
    assert found.startswith(why_not)
    quiet = {each.name: each.quiet for each in CONDITIONS}[name]
    assert told.lines == ([] if quiet else [f"CUDA graphs: off: {found}"])
    assert not told.notices


def test_every_condition_is_tried_and_stands_in_the_docs() -> None:
    names = [each.name for each in CONDITIONS]
    assert {name for name, *_ in REASONS} == set(names)
    table = SPEED_PAGE.read_text().partition("<!-- graphs:begin -->")[2].partition("<!-- graphs:end -->")[0]
    assert [line.split("|")[1].strip() for line in table.strip().splitlines()[2:]] == names


def test_a_job_that_fits_has_graphs_and_nothing_is_said_of_it() -> None:
    told = ToldPasses()
    graphs = graphs_of(spec_with(), told, budget=ROOM, need_bytes=ROOM.usable_bytes, steps_left=50)
    assert graphs.why_not is None
    assert told == ToldPasses()


def test_cuda_graphs_on_gives_notice_on_unsupported_device_and_ignores_step_count() -> None:
    told = ToldPasses()
    graphs = graphs_of(spec_with(cuda_graphs="on"), told, device=CPU)
    message = "passes go on without CUDA graphs: the steps run on cpu, and only cuda has graphs"
    assert told.notices == [(GRAPHS_OFF, {"message": message})]
    assert graphs.why_not == "the steps run on cpu, and only cuda has graphs"
    assert graphs_of(spec_with(cuda_graphs=True), told, steps_left=1).why_not is None


@pytest.mark.parametrize("learns", [{"train_text_encoder": True}, {"train_text_encoder_ti": True}])
def test_cuda_graphs_on_with_text_encoder_training_is_refused_in_spec(learns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cuda_graphs on conflicts with train_text_encoder"):
        spec_with(cuda_graphs="on", instance_prompt="TOK", **learns)


def test_a_cpu_has_no_recorder() -> None:
    assert recorder_of(CPU) is None


def test_memory_of_cuda_graphs_adds_to_memory_of_plain_passes() -> None:
    sizes = MemorySizes(
        weights_bytes=1000,
        trained_bytes=10,
        kept_bytes=dict.fromkeys(Recompute, 100),
        unit_bytes=dict.fromkeys(Recompute, 0),
        preparing_bytes=0,
        sample_sets=1,
        decoding_bytes=50,
    )
    one, rules = MemoryPlan(recompute=Recompute.OFF, rows=1), Rules(most=3)
    of_graphs = 100 + 2 * 10 + 3 * GRAPH_BYTES
    assert sizes.graphs_bytes(one, 3) == of_graphs
    assert alone_bytes(sizes, one, rules) == 1000 + 10 + 100 + of_graphs
    assert together_bytes(sizes, spec_with(), one, 2, rules) == 1000 + 2 * (10 + 100) + 2 * 120 + 3 * GRAPH_BYTES
    assert CONTEXT_BYTES > GRAPH_BYTES
