"""The timeline on the page of a job: what is read of its history, and who may."""

import pytest
from tests.fixtures.dashboard import OTHER, PROJECT, Furnished
from tests.fixtures.people import browser_of

from giornata.control.caller import Caller
from giornata.control.jobs.reading.job_life import read_life
from giornata.domain.errors import NotFound
from giornata.protocol.project.admin import Scope

ANN = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_ann")
BOB = Caller(project_id=OTHER, scopes=Scope.ADMIN.reach, key_id="key_bob")


def test_the_life_of_a_job_has_every_checkpoint_and_every_sheet(installation: Furnished) -> None:
    life = read_life(installation.served.ctx, ANN, installation.done_job)
    assert [step for step, _ in life.checkpoints] == [70, 140, 210, 280, 350]
    assert [name for name, _ in life.validations][:2] == ["fox-samples-00000070.png", "fox-samples-00000140.png"]
    instants = [at for _, at in life.checkpoints]
    assert instants == sorted(instants)
    assert (life.silent, life.audits) == ([], [])
    with pytest.raises(NotFound):
        read_life(installation.served.ctx, BOB, installation.done_job)


def test_the_page_of_a_job_shows_heartbeats_checkpoints_and_validations(installation: Furnished) -> None:
    browser = browser_of(installation.served, installation.viewer)
    page = browser.call("GET", f"/dashboard/projects/{PROJECT}/jobs/{installation.done_job}/timeline").text
    assert page.count('class="checkpoint"') == 5
    assert page.count('class="beats"') == 3
    assert "<title>Validation fox-samples-00000070.png</title>" in page


def test_each_checkpoint_is_downloaded_generated_with_or_trained_on_from(installation: Furnished) -> None:
    here = f"/dashboard/projects/{PROJECT}"
    path = f"{here}/jobs/{installation.done_job}/files?kind=train"
    page = browser_of(installation.served, installation.member).call("GET", path).text
    assert f'href="{here}/generate?lora={installation.done_job}%40350"' in page
    assert f'href="{here}/train?like={installation.done_job}&amp;from=280"' in page
    assert f"{here}/train" not in browser_of(installation.served, installation.viewer).call("GET", path).text
