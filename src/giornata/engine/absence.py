"""Packages that others load in passing, whether they need them or not."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = ("bitsandbytes",)
"""peft imports it, where it is installed, to know its layers when it meets them. It brings torch's compiler along and
takes a fifth of an engine's start; only the 8-bit optimizer needs it, and imports it itself. The price: peft,
diffusers and transformers take it for absent as long as the process lives, and know no layers of its kind."""


@contextmanager
def absent(*packages: str) -> Iterator[None]:
    """Within, these packages are as if they were not installed, unless they are loaded already; afterwards they can
    be imported as ever."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: an import fails, and no spec is found
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
