"""How the pieces of a source are put together: into parts, which are examined by one task each, and into stretches,
whose rows are mixed with one another and written before the next stretch is begun.

Both are functions of the source, so that whoever begins again finds what was done.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa

from giornata.pretrain.data.sources import Kind, Piece

MOST_PARTS = 10_000

PIECES = pa.schema(
    {
        "number": pa.int32(),
        "kind": pa.string(),
        "names": pa.list_(pa.string()),
        "row_group": pa.int32(),
        "first": pa.int64(),
        "bytes": pa.int64(),
    }
)
"""Pieces on their way to the task that reads them: a task gets its own and no others."""


def parts_of(pieces: Sequence[Piece]) -> list[range]:
    """Numbers of the pieces of each part, as even as can be."""
    count = min(len(pieces), MOST_PARTS)
    edges = [len(pieces) * place // count for place in range(count + 1)] if count else []
    return [range(start, stop) for start, stop in pairwise(edges)]


def stretches_of(pieces: Sequence[Piece], shuffle_bytes: int) -> list[range]:
    """Numbers of the pieces of each stretch: the next piece that would make it larger than that begins another."""
    edges, size = [0], 0
    for number, piece in enumerate(pieces):
        if size and size + piece.bytes > shuffle_bytes:
            edges.append(number)
            size = 0
        size += piece.bytes
    return [range(start, stop) for start, stop in zip(edges, [*edges[1:], len(pieces)], strict=True)]


def table_of(pieces: Sequence[Piece], numbers: Sequence[int]) -> pa.Table:
    """Rows of PIECES."""
    chosen = [pieces[number] for number in numbers]
    columns = {name: [getattr(piece, name) for piece in chosen] for name in PIECES.names if name != "number"}
    return pa.table({"number": list(numbers), **columns}, schema=PIECES)


def pieces_of(table: pa.Table) -> Iterator[tuple[int, Piece]]:
    """(number, piece) of each row."""
    for row in table.select(PIECES.names).to_pylist():
        number, kind, names = row.pop("number"), Kind(row.pop("kind")), tuple(row.pop("names"))
        yield number, Piece(kind=kind, names=names, **row)
