"""The SDK is light: whoever imports it gets no torch, no pictures library and no server."""

import subprocess
import sys

HEAVY = (
    "torch",
    "PIL",
    "numpy",
    "fastapi",
    "starlette",
    "sqlalchemy",
    "uvicorn",
    "giornata.control",
    "giornata.store",
)


def test_importing_the_client_loads_nothing_heavy() -> None:
    code = f"import sys, giornata.client; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
