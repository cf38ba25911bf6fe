"""What the trainer teaches the drawing model, option by option: `python -m benchmarks.learning`.

Every lesson (rig/lessons.py) is a whole job on 8 pictures of a subject that the model has never seen. What it has
learned and kept is marked by tools.tiny_shapes.learned, a scorer without learned parts. Prints a line for
each job, then a table (mean, least and greatest over the seeds), then one JSON line. With --results each job's marks
are added to a file of JSON lines, and those that stand there already are not done again.
"""

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from diffusers.utils import logging as diffusers_logging
from tools.tiny_shapes.evaluate import load
from tools.tiny_shapes.learned import PICTURES, Examination
from transformers.utils import logging as transformers_logging

from benchmarks.rig.learning_rig import LearningRig
from benchmarks.rig.lessons import LESSONS, PROMPT
from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.shapes.shipped import copy_drawing_model
from giornata.diffusion.tiny.drawings import SUBJECTS

COLUMNS = ("subject", "subject_iou", "old", "unmoved")
BASE = "base"
Result = dict[str, Any]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lessons", nargs="+", choices=tuple(LESSONS), default=tuple(LESSONS), metavar="NAME")
    parser.add_argument("--subjects", nargs="+", choices=tuple(SUBJECTS), default=("teal-heart",), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures of each kind that are scored")
    parser.add_argument("--results", type=Path, help="JSON lines to add to")
    parser.add_argument("--table-only", action="store_true", help="print the table of --results")
    parser.add_argument("--quick", action="store_true", help="two steps a job and two pictures: to see that it runs")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.quick:
        options.count = 2
    return options


def read(results: Path | None) -> list[Result]:
    if results is None or not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def measure(options: argparse.Namespace, known: Sequence[Result]) -> list[Result]:
    """Every lesson on every subject with every seed, unless known."""
    found: list[Result] = []
    with tempfile.TemporaryDirectory() as directory, _appending(options.results) as file:
        for result in _measured(options, Path(directory), {_key(each) for each in known}):
            found.append(result)
            print(json.dumps(result), flush=True)
            if file is not None:
                file.write(json.dumps(result) + "\n")
                file.flush()
    return found


def _measured(options: argparse.Namespace, home: Path, done: set[tuple[str, str, int]]) -> Iterator[Result]:
    model = copy_drawing_model(home / "model")
    base = load(model)
    examination = Examination(base, count=options.count)
    school = LearningRig(home=home / "lessons", model=model, quick=options.quick)
    for lesson in LESSONS.values():
        school.spec(lesson, 0)  # faults are told before hours have gone by
    for subject in options.subjects:
        if (BASE, subject, 0) not in done:
            marks = examination.of_base(subject, prompt=PROMPT)
            yield {"lesson": BASE, "subject_name": subject, "seed": 0, "seconds": 0.0, **asdict(marks)}
    for seed, name, subject in itertools.product(options.seeds, options.lessons, options.subjects):
        if (name, subject, seed) not in done:
            pipeline, prompt, seconds = school.teach(name, subject, seed)
            marks = examination.of(pipeline, subject, prompt=prompt)
            where = {"lesson": name, "subject_name": subject, "seed": seed, "seconds": round(seconds, 1)}
            yield where | asdict(marks)


def _key(result: Mapping[str, Any]) -> tuple[str, str, int]:
    return result["lesson"], result["subject_name"], result["seed"]


def _appending(path: Path | None) -> Any:
    return nullcontext() if path is None else path.open("a", encoding="utf-8")


def table(results: Sequence[Result]) -> list[str]:
    """Markdown: a row for each lesson and subject."""
    lines = ["| lesson | subject | seeds | drawn | mean IoU | old prompts followed | unmoved | seconds |"]
    lines.append("|" + "---|" * 8)
    rows: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        rows.setdefault((each["lesson"], each["subject_name"]), []).append(each)
    for (lesson, subject), group in rows.items():
        cells = [_spread([float(each[column]) for each in group]) for column in COLUMNS]
        seconds = statistics.median(each["seconds"] for each in group)
        lines.append(f"| {lesson} | {subject} | {len(group)} | {' | '.join(cells)} | {seconds:.0f} |")
    return lines


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    options = options_of(arguments)
    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    fix_determinism(threads=options.threads)
    known = read(options.results)
    found = [] if options.table_only else measure(options, known)
    results = [*known, *found]
    print("\n".join(table(results)))
    print(json.dumps({"benchmark": "learning", "quick": options.quick, "results": results}))


if __name__ == "__main__":
    main()
