"""Python's search for garbage, kept away from what a process loads once and never lets go."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_for_good() -> Iterator[None]:
    """Within, nobody looks for garbage; what is there at the end is never looked at again, and the search goes on.

    Importing torch and diffusers makes some million objects. Python stops to search among them many times on the way,
    in vain, and again in full at each later `gc.collect()`.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
