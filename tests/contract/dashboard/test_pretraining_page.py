"""What the page of a pre-training job shows."""

import re
from dataclasses import replace

from tests.fixtures.dashboard import PROJECT, Furnished
from tests.fixtures.people import ROOT, browser_of

from giornata.control.jobs.reading.read_jobs import get_job
from giornata.protocol.project.admin import ROOT_PROJECT

HERE = f"/dashboard/projects/{ROOT_PROJECT}/jobs"


def test_a_run_shows_rates_money_phases_and_losses_by_noise(installation: Furnished) -> None:
    operator = browser_of(installation.served, installation.operator)
    page = operator.call("GET", f"{HERE}/{installation.pretrain_job}").text
    assert f'hx-get="{HERE}/{installation.pretrain_job}/pretraining"' in page
    assert 'data-keys="mfu,data_wait_share" data-smooth="all"' in page
    assert "Milliseconds per step" not in page
    text = " ".join(operator.call("GET", f"{HERE}/{installation.pretrain_job}/pretraining").text.split())
    for name, value in (
        ("Pictures a second", "11.5"),
        ("MFU", "33 %"),
        ("Waits for data", "4 %"),
        ("Spent", "$0.06"),
    ):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in text, name
    # 32 of 512 pictures are left, at 16 pictures for 0.2 cents and 1.4 s
    assert "<dt>To come</dt><dd>$0.004</dd>" in text
    assert "<dt>Time left</dt><dd>3 s</dd>" in text
    assert "256 / 256" in text
    assert "224 / 256" in text
    assert text.count("Loss at noise level") == 10


def test_sheets_of_evaluations_are_shown_by_step_with_their_phase(installation: Furnished) -> None:
    operator = browser_of(installation.served, installation.operator)
    job = f"{HERE}/{installation.pretrain_job}"
    assert f'hx-get="{job}/pictures?kind=pretrain"' in operator.call("GET", job).text
    text = operator.call("GET", f"{job}/pictures?kind=pretrain").text
    told = re.findall(r'data-step="(\d+)".*?<img src="([^"]+)" alt="([^"]+)"', text, re.DOTALL)
    first, second = phases_of(installation)
    assert [(step, said) for step, _, said in told] == [
        ("8", f"Samples at step 8, phase {first}"),
        ("16", f"Samples at step 16, phase {first}"),
        ("24", f"Samples at step 24, phase {second}"),
    ]
    shown = operator.call("GET", told[0][1].replace("&amp;", "&"))
    assert (shown.status_code, shown.headers["content-type"]) == (200, "image/png")
    assert "Train on from" not in text
    assert "Generate with" not in text


def phases_of(installation: Furnished) -> list[str]:
    """The names of the phases in the spec of the job."""
    job = get_job(installation.served.ctx, replace(ROOT, project_id=ROOT_PROJECT), installation.pretrain_job)
    return [each["name"] for each in job.spec["config"]["phases"]]


def test_only_a_pre_training_job_has_this_part(installation: Furnished) -> None:
    operator = browser_of(installation.served, installation.operator)
    assert (
        operator.call("GET", f"/dashboard/projects/{PROJECT}/jobs/{installation.done_job}/pretraining").status_code
        == 404
    )
    pictures = f"/dashboard/projects/{PROJECT}/jobs/{installation.done_job}/pictures?kind=pretrain"
    assert operator.call("GET", pictures).status_code == 404
    stranger = browser_of(installation.served, installation.stranger)
    assert stranger.call("GET", f"{HERE}/{installation.pretrain_job}/pretraining").status_code == 404
