"""`make gpu` goes on where it stopped, tells what failed, and keeps to its time limits."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import tables
from benchmarks.gpu.child import RUN
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.record import DONE, FAILED, DeviceRecord
from benchmarks.gpu.settings import GpuSettings, settings_for, settings_from

CPU = {"device": "a CPU", "torch": "2", "diffusers": "1"}
GPU = {"device": "NVIDIA H200", "memory_gib": 139.8, "driver": "570", "cuda": "12.8", "torch": "2", "diffusers": "1"}


class NotedParts:
    """Carries out no part, and notes which it was asked for; `broken` ones fail."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.asked = broken, list[str]()

    def __call__(self, part: str, settings: GpuSettings, limit_s: float) -> dict[str, Any]:
        self.asked.append(part)
        if part in self.broken:
            return {"state": FAILED, "seconds": 1.0, "why": "it ended with 1", "said": "its last words"}
        return {"state": DONE, "seconds": 1.0, "found": {}}


def play(path: Path, played: NotedParts, *arguments: str, seconds: tuple[float, ...] = (0.0,) * 99) -> int:
    options = command.options_of(["--device", "cpu", "--json", str(path), *arguments])
    times = iter(seconds)
    return command.run(options, DeviceRecord(path, CPU), played, lambda: next(times))


def test_a_call_on_a_gpu_takes_25_minutes_at_most() -> None:
    assert command.options_of([]).minutes == 25
    assert command.options_of(["--minutes", "9"]).minutes == 9
    assert command.options_of(["--device", "cpu"]).minutes is None


def test_all_limits_together_are_thirty_minutes_and_each_fits_into_nine() -> None:
    assert sum(part.limit_s for part in PARTS.values()) <= 30 * 60
    assert max(part.limit_s for part in PARTS.values()) <= 9 * 60
    assert set(PARTS) == set(RUN) == set(tables.RENDER)


def test_a_second_call_does_what_failed_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, first, second, third = tmp_path / "gpu.json", NotedParts("compiled"), NotedParts(), NotedParts()
    assert play(path, first) == 1
    assert first.asked == list(PARTS)
    assert "its last words" in capsys.readouterr().out
    assert json.loads(path.read_text())["parts"]["compiled"]["why"] == "it ended with 1"
    assert play(path, second) == 0
    assert second.asked == ["compiled"]
    assert play(path, third, "--again", "memory") == 0
    assert third.asked == ["memory"]


def test_gpu_benchmark_with_too_few_minutes_left_stops_and_next_call_does_the_rest(tmp_path: Path) -> None:
    """On a CPU `tests` may take 10 minutes and `steps` 12."""
    path, first, second = tmp_path / "gpu.json", NotedParts(), NotedParts()
    assert play(path, first, "--minutes", "12", seconds=(0.0, 0.0, 100.0)) == command.LEFT
    assert first.asked == ["tests"]
    assert play(path, second) == 0
    assert second.asked == list(PARTS)[1:]


def test_gpu_benchmark_record_of_another_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    play(path, NotedParts(), "--parts", "memory")
    with pytest.raises(SystemExit, match="measured on a CPU, and this is NVIDIA H200"):
        DeviceRecord(path, GPU)


def test_a_part_that_takes_too_long_is_ended_and_told() -> None:
    found = command.carried_out("memory", settings_for("cpu", "none"), 0.01)
    assert found["state"] == FAILED
    assert found["why"] == "it took more than 0.01 s"


def test_last_whole_result_printed_by_interrupted_gpu_part_is_kept() -> None:
    assert command._found('{"ways": {}}\n{"ways": {"off": 1}}\nnoise\n{"ways": {"o') == {
        "found": {"ways": {"off": 1}}
    }
    assert command._found("noise") == {}


def test_settings_come_through_json() -> None:
    settings = settings_for("cuda", "none")
    assert settings_from(json.loads(json.dumps(settings.told()))) == settings
    assert (settings.model, settings.resolution, settings.together) == ("full", 1024, 4)


WAY = {
    "repetitions": 2,
    "step_ms": {"median": 100.0, "min": 90.0, "max": 110.0},
    "images_per_s": {"median": 10.0, "min": 9.0, "max": 11.0},
    "peak_mib": 9000,
    "notices": [],
}


def content(about: dict[str, Any]) -> dict[str, Any]:
    when = {"date": "2026-11-22T00:00:00+00:00", "commit": "abc"}
    steps = {
        "ways": {"alone": WAY, "peft and autocast": WAY},
        "failed": {},
        "script": {"missing": "there is no network"},
    }
    return {
        "about": about,
        "parts": {
            "steps": {"state": DONE, "found": steps, **when},
            "compiled": {"state": FAILED, "why": "it took more than 240 s", **when},
        },
    }


def test_tables_take_the_place_of_those_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- gpu:begin -->\nold\n<!-- gpu:end -->\nafter\n")
    for _ in range(2):
        tables.write(content(GPU), page)
    text = page.read_text()
    assert text.startswith("before\n<!-- gpu:begin -->\nNVIDIA H200, 139.8 GiB, driver 570")
    assert text.endswith("<!-- gpu:end -->\nafter\n")
    assert "old" not in text
    assert text.count("| alone | 2 | 100 (90 to 110) | 10 (9 to 11) | 1.00 | 9000 |") == 1
    assert "The example script was not measured: there is no network." in text
    assert "(failed: it took more than 240 s; 2026-11-22, commit abc)" in text
    assert f"**{PARTS['memory'].title}** (not measured yet)" in text


@pytest.mark.parametrize(("device", "about", "kept"), [("cuda", GPU, False), ("cpu", CPU, True)])
def test_end_of_a_run_puts_tables_of_a_gpu_into_the_page(
    device: str, about: dict[str, Any], kept: bool, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- gpu:begin -->\nold\n<!-- gpu:end -->\n")
    told = command.told_after(command.options_of(["--device", device]), content(about), page)
    assert ("old" in page.read_text()) == kept
    assert any(str(page) in line for line in told) != kept


def test_figures_of_a_rehearsal_do_not_get_into_the_docs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- gpu:begin -->\nold\n<!-- gpu:end -->\n")
    with pytest.raises(SystemExit, match="rehearsal"):
        tables.write(content(CPU), page)
    assert "old" in page.read_text()


def test_the_page_has_the_marks() -> None:
    page = Path(__file__).parents[3] / "docs" / "benchmarks.md"
    assert tables.SECTION.search(page.read_text())
