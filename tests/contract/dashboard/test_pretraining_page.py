"""What the page of a pre-training job shows."""

from tests.fixtures.dashboard import PROJECT, Furnished
from tests.fixtures.people import browser_of

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


def test_only_a_pre_training_job_has_this_part(installation: Furnished) -> None:
    operator = browser_of(installation.served, installation.operator)
    assert (
        operator.call("GET", f"/dashboard/projects/{PROJECT}/jobs/{installation.done_job}/pretraining").status_code
        == 404
    )
    stranger = browser_of(installation.served, installation.stranger)
    assert stranger.call("GET", f"{HERE}/{installation.pretrain_job}/pretraining").status_code == 404
