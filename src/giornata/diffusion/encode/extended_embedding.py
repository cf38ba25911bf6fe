"""A text encoder's embedding matrix with further rows beside it: the vectors of new words.

Shapes: B texts, L tokens, E the width of the embeddings, N further rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class ExtendedEmbedding(nn.Module):
    """An embedding matrix with rows beside it: id -1 is the first of them, -2 the second."""

    def __init__(self, frozen: nn.Embedding, rows_NE: nn.Parameter) -> None:
        super().__init__()
        self.frozen, self.rows_NE = frozen, rows_NE

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        old_BLE = functional.embedding(ids_BL.clamp(min=0), self.frozen.weight)
        new_BLE = functional.embedding((-1 - ids_BL).clamp(min=0), self.rows_NE).to(old_BLE.dtype)
        return torch.where(ids_BL.unsqueeze(-1) < 0, new_BLE, old_BLE)


@contextmanager
def rows_beside(text_encoders: Sequence[Any], rows_NE: Sequence[torch.Tensor | None]) -> Iterator[None]:
    """Within, each text encoder knows its rows as the ids -1, -2, …; afterwards it is as it was. None adds
    nothing."""
    replaced = []
    try:
        for encoder, rows in zip(text_encoders, rows_NE, strict=True):
            if rows is not None:
                frozen = encoder.get_input_embeddings()
                beside = nn.Parameter(rows.to(frozen.weight.device), requires_grad=False)
                encoder.set_input_embeddings(ExtendedEmbedding(frozen, beside))
                replaced.append((encoder, frozen))
        yield
    finally:
        for encoder, frozen in replaced:
            encoder.set_input_embeddings(frozen)
