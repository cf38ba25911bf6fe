"""Forward and backward passes as CUDA graphs, one for each kind of pass, each checked before it is relied on.

A graph holds one forward and one backward pass. The optimizer stays outside: its rate, its count of steps and the
decay of an average are numbers of the CPU, which a graph would freeze. As float32 tensors they would round otherwise.

The rules, which keep every bit as it is without graphs:

- a kind of pass is recorded at its second use, in memory of its own. Its inputs are copied there before each replay;
- each of the first passes by a graph is made plainly too, from the same state. Losses and gradients have to agree to
  the byte, and weights and moments have to stay as they were. The plain pass is the one that counts;
- whatever goes wrong, passes are made plainly from then on, and the reason is told once.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch

from giornata.diffusion.base.cuda_graphs import Graph, Recorder, Tensors
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.optim.objective import NoisyBatch
from giornata.domain.jobs.reasons import Reason
from giornata.workloads.train.faults import reason_of

Part = TypeVar("Part", NoisyBatch, Embedding)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward pass: `run` reads `inputs`, adds to gradients, and returns the loss, detached.

    `fixed` is what `run` depends on besides the inputs and the weights. Passes with equal `fixed`, and inputs of
    equal names, shapes and dtypes, are of one kind.
    """

    inputs: Tensors
    run: Callable[[Tensors], torch.Tensor]
    fixed: Hashable = None

    @property
    def kind(self) -> Hashable:
        """Return a key that is equal for passes that one graph can make."""
        shapes = tuple((name, tuple(each.shape), each.dtype) for name, each in sorted(self.inputs.items()))
        return self.fixed, shapes

    def plainly(self) -> torch.Tensor:
        """Run the pass without a graph."""
        return self.run(self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The tensors that passes change, and those that they must not change: gradients, and weights with moments."""

    gradients: Callable[[], Sequence[torch.Tensor]]
    kept: Callable[[], Sequence[torch.Tensor]]

    @classmethod
    def of(
        cls, gradients: Callable[[], Sequence[torch.Tensor]], state: Callable[[], Tensors], device: torch.device
    ) -> "Watched":
        """Return the tensors of a state that lie on the device: single numbers of an optimizer lie on the CPU."""
        return cls(
            gradients=gradients,
            kept=lambda: [each for each in state().values() if each.device.type == device.type],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules for recording and checking graphs. `record_at`: the use of a kind of pass at which its graph is
    recorded. `checks`: how many of the first passes by a graph are made plainly too; at least 2, for only another
    batch shows that an input was not copied in. `most`: graphs at a time; a kind of pass that is used twice as often
    as the rarest takes its place. `worth_steps`: with auto, steps that a job must have left; a guess."""

    record_at: int = 2
    checks: int = 3
    most: int = 8
    worth_steps: int = 50


RULES = Rules()


@dataclass(slots=True, kw_only=True)
class _RecordedPass:
    """A graph, the buffers that its pass reads from, and how often it agreed with the plain pass."""

    graph: Graph
    buffers: Tensors
    agreed: int = 0

    def replay(self, one: Pass) -> torch.Tensor:
        for name, buffer in self.buffers.items():
            buffer.copy_(one.inputs[name], non_blocking=True)
        return self.graph.replay().clone()


@dataclass(slots=True, kw_only=True)
class Graphs:
    """A maker of passes, by graph where that is possible and has been checked.

    `why_not` says why all passes are made plainly, if they are; `given_up` is told of a reason that comes up later.
    """

    recorder: Recorder | None
    watched: Watched
    given_up: Callable[[str], None]
    why_not: str | None = None
    rules: Rules = RULES
    passes: int = 0
    by_graph: int = 0
    _uses: Counter[Hashable] = field(default_factory=Counter)
    _held: dict[Hashable, _RecordedPass] = field(default_factory=dict)

    def run(self, one: Pass) -> torch.Tensor:
        """Make the pass and return its loss; its gradients are added to those that are there."""
        self.passes += 1
        if self.why_not is not None or self.recorder is None or not self._is_due(one.kind):
            return one.plainly()
        held = self._held.get(one.kind)
        if held is not None and held.agreed >= self.rules.checks:
            self.by_graph += 1
            return held.replay(one)
        return self._checked(one, self.recorder)

    def release(self, why: str) -> bool:
        """Make all further passes plainly, because of `why`. Returns whether graphs held memory, which is free now.
        Gradients of the present step are not to be relied on."""
        held = bool(self._held)
        if self.why_not is None:
            self._give_up(why)
        return held

    def forget(self) -> None:
        """Drop all graphs, because what they were recorded for is no more. Others may be recorded."""
        self._uses.clear()
        if self._held:
            self._held.clear()
            self._release()

    def facts(self) -> dict[str, Any]:
        """Return the counts of passes for the job's summary."""
        return {"passes": self.passes, "by_graph": self.by_graph, "why_not": self.why_not}

    # ---- which kinds of passes

    def _is_due(self, kind: Hashable) -> bool:
        """Return True when a pass of this kind, used once more now, has a graph or is to have one."""
        self._uses[kind] += 1
        if kind in self._held:
            return True
        if self._uses[kind] < self.rules.record_at:
            return False
        if len(self._held) < self.rules.most:
            return True
        rarest = min(self._held, key=self._uses.__getitem__)
        if self._uses[kind] < 2 * self._uses[rarest]:
            return False
        del self._held[rarest]
        return True

    # ---- the check

    def _checked(self, one: Pass, recorder: Recorder) -> torch.Tensor:
        """Make the plain pass, and the same by graph beside it."""
        gradients = self.watched.gradients()
        before = copies_of(gradients)
        loss, short = self._plainly(one)
        if loss is None:  # outside of the except clause: with the exception went the frames that held activations
            put_back(gradients, before)
            self._give_up(short)
            return one.plainly()
        after = copies_of(gradients)
        try:
            said = self._difference(one, recorder, before, after, loss)
        except Exception as error:  # noqa: BLE001 - the supervisor of graphs: the plain pass has been made already
            said = f"{type(error).__name__}: {error}"
        put_back(gradients, after)
        if said is not None:
            self._give_up(said)
        return loss

    def _plainly(self, one: Pass) -> tuple[torch.Tensor | None, str]:
        """Return the loss; None, and the error's text, when memory gave out that graphs could give back."""
        try:
            return one.plainly(), ""
        except RuntimeError as error:
            if reason_of(error) is not Reason.NODE_VRAM or not self._held:
                raise
            return None, f"out of memory: {error}"

    def _difference(
        self,
        one: Pass,
        recorder: Recorder,
        before: Sequence[torch.Tensor],
        after: Sequence[torch.Tensor],
        loss: torch.Tensor,
    ) -> str | None:
        """Return what differs when the pass is made by graph from the state `before`; None when nothing does."""
        kept = self.watched.kept()
        unchanged = copies_of(kept)
        held = self._held.get(one.kind) or self._record(one, recorder)
        put_back(self.watched.gradients(), before)
        found = held.replay(one)
        compared = {
            "losses": ([found], [loss]),
            "gradients": (self.watched.gradients(), after),
            "weights or moments": (kept, unchanged),
        }
        for what, (ours, theirs) in compared.items():
            if not same_bytes(ours, theirs):
                put_back(kept, unchanged)
                return f"{what} of a pass by graph differ from those of the same pass made plainly"
        held.agreed += 1
        return None

    def _record(self, one: Pass, recorder: Recorder) -> _RecordedPass:
        buffers = {name: tensor.clone() for name, tensor in one.inputs.items()}
        graph = recorder.record(one.run, buffers)
        self._held[one.kind] = held = _RecordedPass(graph=graph, buffers=buffers)
        return held

    def _give_up(self, why: str) -> None:
        self.why_not = why[:500]
        self._held.clear()
        self._release()
        self.given_up(self.why_not)

    def _release(self) -> None:
        if self.recorder is not None:
            self.recorder.release()


def named_tensors(prefix: str, part: NoisyBatch | Embedding) -> dict[str, torch.Tensor]:
    """Return the part's tensors, by their names behind the prefix: inputs of a pass."""
    named = {prefix + each.name: getattr(part, each.name) for each in fields(part)}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def part_of(kind: type[Part], prefix: str, inputs: Tensors) -> Part:
    """Rebuild the part that `named_tensors` took apart."""
    named: dict[str, Any] = {each.name: inputs.get(prefix + each.name) for each in fields(kind)}
    return kind(**named)


def same_bytes(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    """Return True when two lists of tensors have equal bytes, NaN and signs of zeros included. Waits for the
    device."""
    if len(ours) != len(theirs):
        return False
    pairs = zip(ours, theirs, strict=True)
    return all(bool((_as_integers(one) == _as_integers(other)).all()) for one, other in pairs)


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(_INTEGERS[tensor.dtype.itemsize])


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def put_back(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
