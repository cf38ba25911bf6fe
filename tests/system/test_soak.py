"""A minute of the soak with everything at once, which `make soak-hour` runs for longer; and that it can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.faults.processes import CLEAN
from tests.system.soak.gauges import Gauge, GaugeSample, growth

ROOT = Path(__file__).parents[2]
PATIENCE_S = 540.0

pytestmark = pytest.mark.timeout(PATIENCE_S + 60)


def test_a_minute_of_everything_at_once():
    command = [sys.executable, "-m", "tests.system.soak", "--quick"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=CLEAN, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["violations"] == 0
    assert result["jobs"]["succeeded"] > 0
    assert sum(result["executions"].values()) > 0
    assert sum(result["harms"].values()) > 10
    assert result["sims"]["complete"] > 0


def test_soak_report_names_growing_memory_and_table_rows():
    def sample(number: int, *, rss_mib: float, attempts: int) -> GaugeSample:
        process = Gauge(cpu_s=0.0, rss_mib=rss_mib, files=20, threads=9)
        ended = 10 * (number + 1)
        rows = {"jobs": ended, "attempts": attempts * ended}
        return GaugeSample(
            at_s=60.0 * number,
            processes={"server": process},
            rows=rows,
            ended=ended,
            storage_files=3 * ended,
            storage_bytes=0,
            temporary_files=0,
        )

    flat = [sample(number, rss_mib=100 + number % 2, attempts=1) for number in range(12)]
    assert growth(flat, ["server"])["grew"] == []
    leaking = [sample(number, rss_mib=100 + 10 * number, attempts=1) for number in range(12)]
    assert growth(leaking, ["server"])["grew"] == ["server, rss_mib: 155.0 to 195.0"]
    hoarding = [sample(number, rss_mib=100, attempts=number) for number in range(12)]
    assert growth(hoarding, ["server"])["grew"] == ["attempts for each job that ended: 5.50 to 9.50"]
