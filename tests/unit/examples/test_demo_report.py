"""The demo's verdict: each thing that does not hold makes it fail."""

from dataclasses import replace

import pytest
from examples.demo.report import JOB_HEADERS, SCORE_HEADERS, DemoOutcome, checks, job_rows, score_rows, summary
from examples.demo.snapshot import Interruption
from tests.unit.examples.demo_rig import attempt, ended, job

from giornata.domain.jobs.job import JobState

DONE = JobState.SUCCEEDED
HASHES = {"lora-kohya.safetensors": "aa", "pytorch_lora_weights.safetensors": "bb"}


def scores(subject=0.9, old=0.9, before=0.0):
    """As tools.tiny_shapes.learned writes them: more than the report uses."""
    more = {"count": 16, "background": 1.0, "unmoved": 1.0}
    base = more | {"subject": before, "subject_iou": 0.5, "old": 0.97}
    return {"base": base, "lora": more | {"subject": subject, "subject_iou": 0.85, "old": old}}


@pytest.fixture
def outcome(tmp_path):
    grid = tmp_path / "grid.png"
    grid.write_bytes(b"png")
    spent = {"state": DONE, "step": 400, "useful_s": 12.5, "cost_micro_usd": 850, "cost_per_useful_step_usd": 2.13e-6}
    jobs = [job(name, ended(), attempt(2), interruptions=1, lost_s=1.5, **spent) for name in ("heart", "fish")]
    again = job("heart-again", attempt(), **spent)
    return DemoOutcome(
        jobs=jobs,
        reference=again,
        repeated="heart",
        killed=[each.id for each in jobs],
        interruptions={each.id: [Interruption(attempt=1, resumed_step=150)] for each in jobs} | {again.id: []},
        hashes=HASHES,
        reference_hashes=dict(HASHES),
        grid=grid,
        scores={"heart": scores(), "fish": scores(0.75, 0.8)},
        seconds=61.04,
    )


def test_demo_checks_all_hold_for_good_outcome(outcome):
    assert [check.held for check in checks(outcome)] == [True] * 5
    found = summary(outcome)
    assert found["ok"] is True
    assert (found["jobs"], found["succeeded"], found["interruptions"], found["bit_identical"]) == (3, 3, 2, True)
    assert (found["grid"], found["seconds"]) == (str(outcome.grid), 61.0)


def _interrupted(outcome, job_id, *found):
    return {"interruptions": {**outcome.interruptions, job_id: list(found)}}


FAULTS = {
    "a job failed": (0, lambda o: {"jobs": [o.jobs[0], o.jobs[1].model_copy(update={"state": JobState.FAILED})]}),
    "the repeated job failed": (
        0,
        lambda o: {"reference": o.reference.model_copy(update={"state": JobState.CANCELED})},
    ),
    "one node was killed": (1, lambda o: {"killed": o.killed[:1]}),
    "one job was hit twice": (1, lambda o: {"killed": o.killed[:1] * 2}),
    "a kill left no trace": (1, lambda o: _interrupted(o, o.killed[1])),
    "a job began again": (1, lambda o: _interrupted(o, o.killed[1], Interruption(attempt=1, resumed_step=0))),
    "a job never went on": (1, lambda o: _interrupted(o, o.killed[1], Interruption(attempt=1, resumed_step=None))),
    "bytes differ": (2, lambda o: {"reference_hashes": HASHES | {"lora-kohya.safetensors": "cc"}}),
    "a file is missing": (2, lambda o: {"reference_hashes": {"lora-kohya.safetensors": "aa"}}),
    "a format is missing": (2, lambda o: {"hashes": {"a": "aa"}, "reference_hashes": {"a": "aa"}}),
    "no files": (2, lambda o: {"hashes": {}, "reference_hashes": {}}),
    "the repeated job was interrupted too": (
        2,
        lambda o: {"reference": o.reference.model_copy(update={"attempts": (ended(), attempt(2))})},
    ),
    "LoRAs have learned too little": (3, lambda _: {"scores": {"heart": scores(0.5), "fish": scores(0.2)}}),
    "the base knew it already": (3, lambda _: {"scores": {"heart": scores(), "fish": scores(before=0.1)}}),
    "LoRAs have forgotten": (4, lambda _: {"scores": {"heart": scores(old=0.8), "fish": scores(old=0.75)}}),
    "no grid": (3, lambda o: {"grid": o.grid.with_name("elsewhere.png")}),
}


def test_a_lora_that_was_not_examined_proves_nothing(outcome):
    for found in ({}, {"heart": scores()}):
        broken = replace(outcome, scores=found)
        assert [check.held for check in checks(broken)] == [True] * 3 + [False] * 2
        assert summary(broken)["ok"] is False


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_its_own_check_and_the_demo(outcome, fault):
    index, change = FAULTS[fault]
    broken = replace(outcome, **change(outcome))
    assert [number for number, check in enumerate(checks(broken)) if not check.held] == [index]
    assert summary(broken)["ok"] is False


def test_the_file_that_differs_is_named(outcome):
    broken = replace(outcome, reference_hashes=HASHES | {"lora-kohya.safetensors": "cc"})
    assert checks(broken)[2].text == "heart and heart-again differ: lora-kohya.safetensors"


def test_demo_report_gives_lora_scores_in_percent_and_in_summary(outcome):
    taught, kept = (check.text for check in checks(outcome)[3:])
    figures = "0 % before, 75 to 90 % with LoRA, 82 % on average (at least 40 %)"
    assert taught == f"LoRAs draw their subjects: {figures}"
    assert kept == "LoRAs keep the old forms: 97 % before, 80 to 90 % with LoRA, 85 % on average (at least 80 %)"
    assert all(len(row) == len(SCORE_HEADERS) for row in score_rows(outcome.scores))
    assert score_rows(outcome.scores)[0] == ("heart", "0 %", "90 %", "0.50", "0.85", "97 %", "90 %")
    assert summary(outcome)["learned"]["fish"] == {
        "subject_base": 0.0,
        "subject": 0.75,
        "iou_base": 0.5,
        "iou": 0.85,
        "old_base": 0.97,
        "old": 0.8,
    }


def test_the_table_says_what_each_job_took_and_cost(outcome):
    table = job_rows(outcome)
    assert all(len(row) == len(JOB_HEADERS) for row in table)
    assert table[0] == ("heart", "2 ⚡", "400", "12.5 s", "1.5 s", "$0.00085", "$0.00000213")
    assert table[-1][:2] == ("heart-again", "1")
