"""The canary: it checks that this device repeats itself, multiplies correctly, and keeps what is written to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from giornata.diffusion.draws.randomness import integer
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import CanarySpec
from giornata.workloads.canary.training import LARGE, SMALL, Bend, CanaryRun, check_twins, train
from giornata.workloads.interface import AgentRequest, Outcome, Reporter, Stopped

# ---- Bits that are written to the device's memory have to come back

SHARE = 0.5  # of what is free: a model that is warm on the card stays there
CHUNK_BYTES = 2**28
ON_CPU_BYTES = 2**26
WORD_BYTES = 8
ODD = 0x2545F4914F6CDD1D  # neighboring words differ in about half of their bits

Touch = Callable[[torch.Tensor], None]
"""The function by which a test damages memory after it was written. On a sound device it does nothing."""


def bytes_to_check(device: torch.device) -> int:
    """Return how much of the memory is checked: half of what is free, in whole chunks."""
    if device.type != "cuda":
        return ON_CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return max(CHUNK_BYTES, int(free * SHARE) // CHUNK_BYTES * CHUNK_BYTES)


def check_memory(device: torch.device, size_bytes: int, *, attend: Callable[[], None], touch: Touch) -> int:
    """Write a pattern over all of the memory and read it back, then the same with every bit inverted.

    `attend` is called between chunks, and may raise. Returns how many bytes were checked. Raises WorkloadFailed
    (NODE_DRIVER) when bits come back wrong, and torch's OutOfMemoryError when the memory is not there.
    """
    try:
        return _written_and_read(device, size_bytes, attend, touch)
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _written_and_read(device: torch.device, size_bytes: int, attend: Callable[[], None], touch: Touch) -> int:
    chunk_bytes = min(CHUNK_BYTES, size_bytes)
    words = chunk_bytes // WORD_BYTES
    pieces = [torch.empty(words, dtype=torch.int64, device=device) for _ in range(size_bytes // chunk_bytes)]
    for inverted in (False, True):
        for number, piece in enumerate(pieces):
            attend()
            piece.copy_(_pattern(number, piece, inverted=inverted))
            touch(piece)
        for number, piece in enumerate(pieces):
            attend()
            _compare(number, piece, _pattern(number, piece, inverted=inverted))
    return len(pieces) * words * WORD_BYTES


def _pattern(number: int, piece: torch.Tensor, *, inverted: bool) -> torch.Tensor:
    """Return a pattern in which each word is computed from its own place."""
    first = number * piece.numel()
    words = torch.arange(first, first + piece.numel(), dtype=torch.int64, device=piece.device) * ODD
    return ~words if inverted else words


def _compare(number: int, piece: torch.Tensor, written: torch.Tensor) -> None:
    if torch.equal(piece, written):
        return
    wrong = piece != written
    one = int(wrong.to(torch.uint8).argmax())
    bits = int(piece[one] ^ written[one]) & (2**64 - 1)
    message = (
        f"{int(wrong.sum())} words of the device's memory came back with other bits than were written; "
        f"one of them at byte {(number * piece.numel() + one) * WORD_BYTES}, bits {bits:#018x}"
    )
    raise WorkloadFailed(Reason.NODE_DRIVER, message)


# ---- Products that must be exact, and how fast they are made

Matmul = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

DEEP = 256  # sums of so many products of -1, 0 and 1 are exact in bfloat16, in whatever order they are added
MEASURED_S = 0.25
MOST_ROUNDS = 10_000


def check_products(device: torch.device, side: int, matmul: Matmul) -> None:
    """Raise WorkloadFailed (NODE_DRIVER) unless each number of a product is the one that the CPU finds."""
    a_ND, b_DN = _signs(side, DEEP, "a"), _signs(DEEP, side, "b")
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    found = matmul(a_ND.to(device, kind), b_DN.to(device, kind)).float().cpu()
    wrong = int((found != a_ND @ b_DN).sum())
    if wrong:
        message = f"{wrong} of {found.numel()} numbers of a product of matrices are wrong on this device"
        raise WorkloadFailed(Reason.NODE_DRIVER, message)


def tflops(
    device: torch.device, side: int, matmul: Matmul, *, now_s: Callable[[], float] = time.perf_counter
) -> float:
    """Measure square products for a quarter of a second, in bfloat16 on CUDA: 2·side³ operations each, in 10¹² a
    second."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (_signs(side, side, name).to(device, kind) for name in "ab")
    matmul(a, b)
    _wait(device)
    begun_s, rounds = now_s(), 0
    while now_s() - begun_s < MEASURED_S and rounds < MOST_ROUNDS:
        for _ in range(10):
            matmul(a, b)
        rounds += 10
        _wait(device)
    return 2 * side**3 * rounds / (now_s() - begun_s) / 1e12


def _signs(rows: int, columns: int, name: str) -> torch.Tensor:
    """Return -1, 0 and 1 in an order that looks random; fp32 on the CPU."""
    step = 2 * integer(0, "canary-signs", name, low=2**19, high=2**20) + 1
    mixed = torch.arange(rows * columns, dtype=torch.int64) * step
    return ((mixed ^ (mixed >> 7)) % 3 - 1).float().reshape(rows, columns)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


CHECKED_SIDE = {"cuda": 2048, "cpu": 256}
MEASURED_SIDE = {"cuda": 4096, "cpu": 256}


def _leave(_: torch.Tensor) -> None:
    """Leave the written numbers unchanged, as sound memory does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware that a test can damage (products, predictions in the training, written memory) and make quick.

    `memory_bytes` is how much memory is checked: by default what `bytes_to_check` says.
    """

    matmul: Matmul = field(default=torch.matmul)
    bend: Bend = field(default=lambda _, prediction: prediction)
    touch: Touch = field(default=_leave)
    memory_bytes: int | None = None
    now_s: Callable[[], float] = field(default=time.perf_counter)


class CanaryWorkload:
    """The workload that checks a device. It holds no model and writes no checkpoint: a canary that is stopped begins
    anew elsewhere.

    It takes at most half of the memory that is free, and gives it back: warm models beside it stay.
    """

    def __init__(self, *, device: str, hardware: Hardware | None = None) -> None:
        self._device, self._hardware = torch.device(device), hardware or Hardware()

    def held(self) -> tuple[str, ...]:
        """Return no keys: the canary keeps no model."""
        return ()

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        """Check the device. Raises Stopped, and WorkloadFailed when the device does not compute what every other one
        does."""
        spec = CanarySpec.model_validate(start.spec)
        summary = self._arithmetic(reporter) | self._memory(reporter) | self._training(spec.steps, reporter)
        return Outcome(step=spec.steps, summary=summary)

    def _arithmetic(self, reporter: Reporter) -> dict[str, float]:
        _begin(reporter, "multiplying")
        kind, hardware = self._device.type, self._hardware
        check_products(self._device, CHECKED_SIDE[kind], hardware.matmul)
        measured = tflops(self._device, MEASURED_SIDE[kind], hardware.matmul, now_s=hardware.now_s)
        return {"matmul_tflops": round(measured, 4)}

    def _memory(self, reporter: Reporter) -> dict[str, int]:
        _begin(reporter, "checking memory")
        checked = check_memory(
            self._device,
            self._hardware.memory_bytes or bytes_to_check(self._device),
            attend=lambda: _attend(reporter),
            touch=self._hardware.touch,
        )
        return {"memory_checked_bytes": checked}

    def _training(self, steps: int, reporter: Reporter) -> dict[str, float | bool]:
        def first(step: int, loss: float) -> None:
            reporter.progress(step, steps, {"loss": loss})
            _attend(reporter)

        def second(step: int, _: float) -> None:
            reporter.phase("training again", step, steps)
            _attend(reporter)

        _begin(reporter, "training")
        one, other = self._train(steps, first), self._train(steps, second)
        check_twins(one, other)
        return {"bit_equal": True, "first_loss": one.losses[0], "last_loss": one.losses[-1]}

    def _train(self, steps: int, told: Callable[[int, float], None]) -> CanaryRun:
        size = LARGE if self._device.type == "cuda" else SMALL
        return train(steps, self._device, size, bend=self._hardware.bend, told=told)


def _begin(reporter: Reporter, phase: str) -> None:
    reporter.phase(phase)
    _attend(reporter)


def _attend(reporter: Reporter) -> None:
    if reporter.agent_request() in {AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP}:
        raise Stopped
