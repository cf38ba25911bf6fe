"""Pictures that kill or hang the process cost the others nothing; and nothing here loads PIL.

The killers are stand-ins for the interpreter: scripts that speak the process's protocol, and misbehave when a
picture's name tells them to.
"""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from giornata.diffusion.tiny.drawings import draw_subject
from giornata.domain.errors import Unavailable
from giornata.pictures.inspection import PictureInspection, PictureLimits, inspect

STAND_IN = """\
#!{python}
import json, os, signal, sys
print('{{"ready": true}}', flush=True)
open({log!r}, "a").write("start\\n")
served = 0
for line in sys.stdin:
    name = json.loads(line)["name"]
    open({log!r}, "a").write(name + "\\n")
    if "hang" in name: signal.pause()
    if "kill" in name: os.kill(os.getpid(), signal.SIGKILL)
    if "segfault" in name: os.kill(os.getpid(), signal.SIGSEGV)
    if "spin" in name: os.kill(os.getpid(), signal.SIGXCPU)
    if "exit" in name: sys.exit(7)
    if "nonsense" in name: print("[1, 2", flush=True); continue
    if "swap" in name: name = "another"
    if "second" in name and served: os._exit(1)
    served += 1
    reply = {{"name": name, "format": "PNG", "width": 64, "height": 65, "faults": [], "notes": ["n"]}}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def stand_in(tmp_path: Path, log: Path) -> str:
    path = tmp_path / "stand-in"
    path.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    path.chmod(0o755)
    return str(path)


def fine(name: str) -> PictureInspection:
    return PictureInspection(name=name, format="PNG", width=64, height=65, faults=(), notes=("n",))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hang.png", "could not be decoded within 0.5 s"),
        ("kill.png", "had the decoder killed"),
        ("segfault.png", "crashes the decoder (Segmentation fault)"),
        ("spin.png", "too much processor time"),
        ("exit.png", "makes the decoder exit (status 7)"),
        ("nonsense.png", "makes the decoder answer nonsense"),
        ("swap.png", "makes the decoder answer nonsense"),
    ],
)
def test_a_killer_gets_a_fault_and_the_others_their_word(name: str, said: str, stand_in: str) -> None:
    files = [(each, Path(each)) for each in ("a.png", name, "b.png", "c.png")]
    found = inspect(files, python=stand_in, timeout_s_each=0.5)
    assert [found[0], *found[2:]] == [fine("a.png"), fine("b.png"), fine("c.png")]
    (fault,) = found[1].faults
    assert fault.where == name
    assert said in fault.message
    assert "leave it out" in fault.hint


def test_inspection_without_crash_uses_one_process_for_all_pictures(stand_in: str, log: Path) -> None:
    inspect([(name, Path(name)) for name in "abc"], python=stand_in)
    assert log.read_text().split() == ["start", "a", "b", "c"]


def test_picture_that_crashes_process_behind_others_is_retried_before_blame(stand_in: str, log: Path) -> None:
    found = inspect([(name, Path(name)) for name in ("a", "second", "b")], python=stand_in)
    assert found == [fine("a"), fine("second"), fine("b")]
    assert log.read_text().split() == ["start", "a", "second", "start", "second", "b"]


def test_pictures_that_all_kill_the_process_get_one_fault_each(stand_in: str) -> None:
    found = inspect([(f"kill{number}", Path("x")) for number in range(3)], python=stand_in)
    assert [len(one.faults) for one in found] == [1, 1, 1]


def test_no_pictures_start_no_process() -> None:
    assert inspect([], python="/nowhere/python") == []


def test_an_interpreter_that_does_not_start_is_told_apart_from_bad_pictures(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not start"):
        inspect([("a", tmp_path / "a")], python=str(tmp_path / "nowhere"))
    broken = tmp_path / "broken"
    broken.write_text(f"#!{sys.executable}\nraise ImportError('no module named PIL')\n")
    broken.chmod(0o755)
    with pytest.raises(Unavailable, match="no module named PIL"):
        inspect([("a", tmp_path / "a")], python=str(broken))


def test_the_real_process_looks_at_real_pictures(tmp_path: Path) -> None:
    (good,) = draw_subject("teal-heart", tmp_path, count=1)
    odd = tmp_path / os.fsdecode(b"odd \xff name \xc3\xa9.png")
    odd.write_bytes(good.read_bytes())
    (tmp_path / "bad.jpg").write_bytes(b"")
    found = inspect([("good", good), ("bad.jpg", tmp_path / "bad.jpg"), (odd.name, odd), ("gone", tmp_path / "gone")])
    assert found[0] == PictureInspection(name="good", format="PNG", width=64, height=64, faults=(), notes=())
    assert found[2].faults == () and found[2].name == odd.name
    assert [str(fault) for one in found for fault in one.faults] == [
        "bad.jpg: is empty (0 bytes) (copy or download it again)",
        "gone: is not there (check the path)",
    ]


def test_every_limit_reaches_the_process(tmp_path: Path) -> None:
    paths = draw_subject("teal-heart", tmp_path, count=1)
    files = [(path.name, path) for path in paths]
    tight = [
        PictureLimits(max_pixels=4095),
        PictureLimits(max_side_px=63),
        PictureLimits(min_side_px=65),
        PictureLimits(max_aspect=0.99),
        PictureLimits(max_file_bytes=100),
    ]
    assert [len(inspect(files, limits=limits)[0].faults) for limits in tight] == [1] * 5


def test_processor_time_is_limited_by_the_process_itself() -> None:
    code = """
        import time
        from giornata.pictures.inspector.process_limits import allow_cpu
        for picture in range(2):
            allow_cpu(1)
            end_s = time.process_time() + 0.7
            while time.process_time() < end_s: pass
        print("two that take 0.7 s each are fine", flush=True)
        while True: pass
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "two that take 0.7 s each are fine\n"
    assert done.returncode == -signal.SIGXCPU


def test_a_module_in_the_current_folder_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "PIL.py").write_text("raise SystemExit('taken over')")
    (picture,) = draw_subject("teal-heart", tmp_path, count=1)
    code = (
        "import sys; from pathlib import Path; from giornata.pictures.inspection import inspect;"
        "print(inspect([('a', Path(sys.argv[1]))])[0].faults)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, picture.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("()", "")


@pytest.mark.parametrize("module", ["inspection", "folder", "captions", "check"])
def test_import_loads_no_pil(module: str) -> None:
    code = (
        f"import sys, giornata.pictures.{module}; print({{'PIL', 'numpy', 'torch', 'pydantic'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
