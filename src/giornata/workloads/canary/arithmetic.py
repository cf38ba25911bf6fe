"""Products that must be exact, and how fast they are made."""

import time
from collections.abc import Callable

import torch

from giornata.diffusion.randomness import integer
from giornata.domain.errors import WorkloadFailed
from giornata.domain.reasons import Reason

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
    """Square products for a quarter of a second, in bfloat16 on CUDA: 2·side³ operations each, in 10¹² a second."""
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
    """-1, 0 and 1 in an order that looks like none; fp32 on the CPU."""
    step = 2 * integer(0, "canary-signs", name, low=2**19, high=2**20) + 1
    mixed = torch.arange(rows * columns, dtype=torch.int64) * step
    return ((mixed ^ (mixed >> 7)) % 3 - 1).float().reshape(rows, columns)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
