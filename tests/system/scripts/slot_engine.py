"""Counts as count_engine.py does, but ends before it says hello where its node is that of slot 0."""

import os
import runpy
import sys
from pathlib import Path

if b"here-0" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0"):
    sys.exit("the driver is broken")
runpy.run_path(str(Path(__file__).with_name("count_engine.py")), run_name="__main__")
