"""`giornata project quotas`: what it shows, sets and refuses."""


def test_quotas_are_set_shown_and_lifted(run):
    given = ("--running-jobs", "3", "--stored", "50GB", "--base", "some/*", "--adapter", "source:job")
    found = run("project", "quotas", "default", *given, "--json").json
    assert (found["running_jobs"]["limit"], found["stored_bytes"]["limit"]) == (3, 50 * 10**9)
    shown = run("project", "quotas", "default").output
    assert "some/*" in shown
    assert "source:job" in shown
    lifted = run("project", "quotas", "default", "--running-jobs", "none", "--base", "none", "--json").json
    assert (lifted["running_jobs"]["limit"], lifted["allowed_base_models"]) == (None, None)
    assert lifted["allowed_adapters"] == ["source:job"], "a limit that is not named stays"


def test_limits_that_cannot_be_are_refused_by_their_options(run):
    refused = run("project", "quotas", "default", "--running-jobs", "-1", "--priority", "900")
    assert refused.status != 0
    assert "--running-jobs" in refused.errors
    assert "--priority" in refused.errors
    assert (
        "--queued-jobs: 'many' is not a number" in run("project", "quotas", "default", "--queued-jobs", "many").errors
    )
    assert "there is no project art" in run("project", "quotas", "art").errors
