"""The conditions for CUDA graphs, decided before the first step; docs/reference/training-speed.md has the table for
users."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from giornata.diffusion.base import cuda_graphs
from giornata.diffusion.base.cuda_graphs import Recorder
from giornata.diffusion.base.memory import in_gib
from giornata.diffusion.base.models import BaseModel
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import CudaGraphs
from giornata.workloads.interface import Reporter
from giornata.workloads.train.device.graphs import RULES, Graphs, Rules, Watched
from giornata.workloads.train.device.layout import MemoryLayout, needed_bytes
from giornata.workloads.train.device.memory_budget import GRAPH_BYTES, MemoryBudget, MemoryPlan, MemorySizes

GRAPHS_OFF = "cuda-graphs-off"
"""The notice that goes into a job's events when it asks for graphs, or has had some, and goes on without."""
DROPOUTS = ("network_dropout", "rank_dropout", "module_dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The case to decide: a job before its steps. Its steps take at most `need_bytes` by graph. `budget` is None
    where memory has no bound."""

    spec: TrainSpec
    device: torch.device
    recorder: Recorder | None
    steps_left: int
    rules: Rules
    need_bytes: int
    budget: MemoryBudget | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition for graphs. `why_not` says why passes of a case cannot run as graphs; None when the condition
    allows them. `quiet`: the user knows that already."""

    name: str
    why_not: Callable[[Case], str | None]
    quiet: bool = False


def _off(case: Case) -> str | None:
    return "cuda_graphs is off" if case.spec.cuda_graphs is CudaGraphs.OFF else None


def _device(case: Case) -> str | None:
    return None if case.recorder else f"the steps run on {case.device.type}, and only cuda has graphs"


def _text_encoders(case: Case) -> str | None:
    named = [name for name in ("train_text_encoder", "train_text_encoder_ti") if getattr(case.spec, name)]
    return f"{named[0]}: captions become tokens on the CPU within each pass" if named else None


def _dropouts(case: Case) -> str | None:
    named = [name for name in DROPOUTS if getattr(case.spec, name, None)]
    return f"{named[0]}: a dropout is drawn within each pass, and a graph would repeat one draw" if named else None


def _steps(case: Case) -> str | None:
    few = case.spec.cuda_graphs is CudaGraphs.AUTO and case.steps_left < case.rules.worth_steps
    return f"{case.steps_left} steps are left, and auto wants {case.rules.worth_steps}" if few else None


def _memory(case: Case) -> str | None:
    if case.budget is None or case.need_bytes <= case.budget.usable_bytes:
        return None
    needs, has = in_gib(case.need_bytes), in_gib(case.budget.usable_bytes)
    return f"memory: steps by graph are expected to take {needs}, and the device has room for {has}"


CONDITIONS = (
    Condition(name="cuda_graphs", why_not=_off, quiet=True),
    Condition(name="device", why_not=_device, quiet=True),
    Condition(name="text encoders", why_not=_text_encoders),
    Condition(name="dropouts", why_not=_dropouts),
    Condition(name="steps", why_not=_steps, quiet=True),
    Condition(name="memory", why_not=_memory),
)
"""In this order; the first that holds is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capturing:
    """The recorder with which a node makes graphs, and the rules for them."""

    recorder_of: Callable[[torch.device], Recorder | None] = cuda_graphs.recorder_of
    rules: Rules = RULES

    def alone(
        self,
        base: BaseModel,
        spec: TrainSpec,
        layout: MemoryLayout,
        watched: Watched,
        reporter: Reporter,
        *,
        steps_left: int,
    ) -> Graphs:
        """Return the graphs of a job that trains alone."""
        return self.graphs(
            base.device,
            spec,
            watched,
            notice=reporter.notice,
            log=reporter.log,
            steps_left=steps_left,
            need_bytes=alone_bytes(layout.sizes, layout.memory_plan),
            budget=layout.budget_now(),
        )

    def graphs(
        self,
        device: torch.device,
        spec: TrainSpec,
        watched: Watched,
        *,
        notice: Callable[[str, dict[str, Any]], None],
        log: Callable[[str], None],
        steps_left: int,
        need_bytes: int,
        budget: MemoryBudget | None,
    ) -> Graphs:
        """Return the graphs of an attempt. The reason why there are none is told, where the user could not know
        it."""
        recorder = None if spec.cuda_graphs is CudaGraphs.OFF else self.recorder_of(device)
        case = Case(
            spec=spec,
            device=device,
            recorder=recorder,
            steps_left=steps_left,
            rules=self.rules,
            need_bytes=need_bytes,
            budget=budget,
        )
        found = next(((each, why) for each in CONDITIONS if (why := each.why_not(case))), None)

        def given_up(why: str) -> None:
            notice(GRAPHS_OFF, off(why))

        if found is not None and spec.cuda_graphs is CudaGraphs.ON:
            given_up(found[1])
        elif found is not None and not found[0].quiet:
            log(f"CUDA graphs: off: {found[1]}")
        why_not = None if found is None else found[1]
        return Graphs(recorder=recorder, watched=watched, given_up=given_up, why_not=why_not, rules=self.rules)


def off(why: str) -> dict[str, Any]:
    """Return the data of the notice GRAPHS_OFF."""
    return {"message": f"passes go on without CUDA graphs: {why}"}


def alone_bytes(sizes: MemorySizes, memory_plan: MemoryPlan, rules: Rules = RULES) -> int:
    """Return the most that a job takes by graph when it trains alone: plain passes are made between those by graph,
    and pictures are drawn."""
    beside_bytes = max(sizes.activation_bytes(memory_plan), sizes.decoding_bytes)
    return sizes.weights_bytes + sizes.trained_bytes + beside_bytes + sizes.graphs_bytes(memory_plan, rules.most)


def together_bytes(
    sizes: MemorySizes, spec: TrainSpec, memory_plan: MemoryPlan, places: int, rules: Rules = RULES
) -> int:
    """Return the most that a shared batch of so many places takes by graph."""
    of_places_bytes = places * sizes.graphs_bytes(memory_plan, 0)
    return needed_bytes(sizes, spec, places) + of_places_bytes + rules.most * GRAPH_BYTES


CAPTURING = Capturing()
