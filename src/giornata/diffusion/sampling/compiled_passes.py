"""Passes of one UNet by compiled kernels: which ones, of how many rows, and whether their answers may be used.

Kernels are made for one kind of pass: a size of latents, a length of prompts, and a width. The width is the number of
rows that the pass has room for, a power of two, so that rows come and go without new kernels; rows that are missing
are filled up. Timesteps, guidance and weights are inputs. LoRAs lie in places, and kernels stay while these have the
layout that they were made for (`giornata.diffusion.adapter.row_adapters`).
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from giornata.diffusion.base import regional

MOST_KINDS = 16
"""Kinds of passes that have kernels; others are plain. Each takes the compiler about as long as the first one."""
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""The length of the difference between the answers of both ways, by the length of the plain one."""
TOLERANCE_OF_SINGLES = 1e-4

NO_LORA = -1
"""The layout of a pass in which no row has a LoRA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassKind:
    """A kind of pass has kernels of its own: by the latents of one row, the width, and the prompts' length. `masked`
    prompts are of several lengths."""

    latents: torch.Size
    width: int
    tokens: int
    masked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRules:
    """`compiler` is its name and version. Kernels are made for a kind of pass after `passes_before` plain ones of it.
    `checked`: their first answer is compared, and a compiler that fails is done without. `of_one`: passes of one
    picture have kernels too, so that its bytes depend on when its node had made them."""

    compiler: str
    passes_before: int = 0
    checked: bool = True
    of_one: bool = True
    backend: regional.Backend = regional.INDUCTOR
    most_kinds: int = MOST_KINDS


class CompiledPasses:
    """The compiled passes of `unet`, whose modules and adapters stay. `close` gives it back as it was.

    `said` collects sentences for the log; whoever logs them takes them out.
    """

    def __init__(self, unet: Any, rules: KernelRules) -> None:
        self._unet, self._rules = unet, rules
        self._passes: Counter[PassKind] = Counter()
        self._kinds: set[PassKind] = set()
        self._sound: set[tuple[PassKind, int]] = set()
        self._refused: set[PassKind] = set()
        self._is_begun = self._is_off = False
        self.said: deque[str] = deque()

    @property
    def compiler(self) -> str:
        """Return the compiler's name and version."""
        return self._rules.compiler

    def takes(self, kind: PassKind, *, alone: bool) -> bool:
        """Return True for a pass that is to run by kernels, and count it. `alone`: it is of one picture."""
        if self._is_off or kind in self._refused or (alone and not self._rules.of_one):
            return False
        if kind in self._kinds:
            return True
        self._passes[kind] += 1
        if self._passes[kind] <= self._rules.passes_before or len(self._kinds) >= self._rules.most_kinds:
            return False
        self._kinds.add(kind)
        return True

    def run(self, kind: PassKind, layout: int, call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Return the answer of `call`, which is a pass of the UNet, and whether kernels gave it. With new kernels the
        pass is made again plainly, if the rules say so; then the plain answer counts where the two disagree."""
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import CppCompileError

        if not self._is_begun:
            regional.begin_compiled(self._unet, backend=self._rules.backend)
            self._is_begun = True
        try:
            with regional.compiler_settings(self._unet.device):
                answer = call()
                if not self._rules.checked or (kind, layout) in self._sound:
                    return answer, True
                again = call()
        except (TorchDynamoException, CppCompileError) as error:
            if not self._rules.checked:
                raise
            self._is_off = True
            said = " ".join(str(error).split())[:500]
            self.said.append(f"pictures are drawn without compiled kernels: the compiler failed with {said}")
            answer = again = None
        # Outside of the except clause: the traceback's frames held the activations.
        if answer is None or again is None:
            self.close()
            return call(), False
        with regional.plainly(self._unet):
            plain = call()
        if (fault := _fault(answer, again, plain)) is not None:
            self._refused.add(kind)
            self.said.append(f"passes of {_in_words(kind)} are made without compiled kernels: {fault}")
            return plain, False
        self._sound.add((kind, layout))
        return answer, True

    def plain(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the answer of a pass without kernels."""
        if not self._is_begun:
            return call()
        with regional.plainly(self._unet):
            return call()

    def close(self) -> None:
        """Take the kernels off the UNet. May be called again."""
        if self._is_begun:
            regional.end_compiled(self._unet)
            self._is_begun = False
            self._sound.clear()


def width_of(rows: int) -> int:
    """Return the width of a pass of so many rows: the next power of two."""
    return 1 << (rows - 1).bit_length()


def _fault(answer: torch.Tensor, again: torch.Tensor, plain: torch.Tensor) -> str | None:
    """Return what is wrong with the answer of kernels; None for one that can be used."""
    if not torch.equal(answer, again):
        return "the same pass gave other bytes when it was made a second time"
    tolerance = TOLERANCE.get(plain.dtype, TOLERANCE_OF_SINGLES)
    apart, length = float((answer.float() - plain.float()).norm()), float(plain.float().norm())
    if apart <= tolerance * length:  # a NaN is no agreement
        return None
    share = apart / length if length else apart
    return f"their answer is {share:.2g} away from the plain one, and {tolerance:g} is allowed"


def _in_words(kind: PassKind) -> str:
    return f"{kind.width} rows of {kind.latents[-1]}×{kind.latents[-2]} latents with {kind.tokens} tokens"
