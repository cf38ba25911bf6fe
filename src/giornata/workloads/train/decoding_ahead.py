"""Pictures are decoded by threads while the device encodes those before them."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 4
AHEAD = 2
"""Pictures for each thread that are begun, or done and not taken yet."""

Item = TypeVar("Item")
Looked = TypeVar("Looked")


def threads_here() -> int:
    """One for each processor that is left beside the main thread."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) - 1))


def ahead(items: Iterable[Item], look: Callable[[Item], Looked], *, threads: int) -> Generator[Looked, None, None]:
    """`look` of each item, in their order. At most AHEAD * `threads` are begun and not taken.

    Close the iterator to end its threads. Raises what `look` raises, when that item's turn has come.
    """
    begun: deque[Future[Looked]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            for item in items:
                begun.append(pool.submit(look, item))
                if len(begun) >= AHEAD * threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()
