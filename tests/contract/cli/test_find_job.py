"""The job that a person means, in every command that takes one."""

import pytest
import typer
from tests.fixtures.served import a_dataset

from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.main import app
from giornata.domain.errors import InvalidInput, NotFound

SPEC = {"model": "some/model", "instance_prompt": "a photo of sks dog", "max_train_steps": 50}


@pytest.fixture
def client(served):
    return served.client(served.keys.admin)


@pytest.fixture
def submit(client, tmp_path):
    dataset = a_dataset(client, tmp_path)
    return lambda name: client.submit({**SPEC, "dataset": dataset.id}, name=name)


def test_a_job_is_meant_by_its_name_its_id_the_beginning_of_it_and_last(client, submit):
    dog, cat = submit("dog"), submit("cat")
    assert find_job(client, "dog") == find_job(client, dog.id) == dog.id
    assert find_job(client, "last") == find_job(client, "cat") == cat.id
    # Ids of the tests differ in their last digits only.
    assert find_job(client, cat.id.removeprefix("job_")) == cat.id


def test_a_whole_id_is_taken_without_a_request():
    whole = "job_01m81qwfx06fapep5av64wzd4w"
    assert find_job(None, whole) == whole


def test_several_candidates_are_listed(client, submit):
    first, second = submit("dog"), submit("dog")
    submit("cat")
    with pytest.raises(InvalidInput) as refused:
        find_job(client, "dog")
    said = refused.value.faults
    assert "matches 2 jobs" in said[0].message
    assert {each.where for each in said[1:]} == {first.id, second.id}
    assert "dog, queued" in said[1].message


def test_a_whole_id_wins_over_longer_ones_and_names(client, submit):
    dog = submit("dog")
    submit(dog.id)
    assert find_job(client, dog.id) == dog.id


@pytest.mark.parametrize("word", ["nope", "", "job", "%", "_", "job_%", "x" * 129])
def test_job_lookup_by_unmatched_word_or_wildcard_is_not_found(client, submit, word):
    with pytest.raises(NotFound, match="no job matches"):
        find_job(client, word)
    submit("dog")
    if word not in {"job"}:
        with pytest.raises(NotFound, match="no job matches"):
            find_job(client, word)


def test_last_of_no_jobs_is_said(client):
    with pytest.raises(NotFound, match="no job yet"):
        find_job(client, "last")


def test_the_server_matches_names_whole_and_ids_by_their_beginning(client, served, submit):
    dog, cat = submit("dog"), submit("dog two")
    assert [job.id for job in client.jobs(match="dog")] == [dog.id]
    assert [job.id for job in client.jobs(match=cat.id[:-1])] == [cat.id, dog.id]
    assert list(client.jobs(match="%")) == []
    other = served.client(served.keys.other_admin)
    assert list(other.jobs(match="dog")) == []
    refused = served.call("GET", "/v1/jobs", served.keys.admin, params={"match": "a\x00b"})
    assert refused.status_code == 400


TAKES_A_JOB = {
    "job": (),
    "cancel": (),
    "retry": (),
    "budget": ("0.50",),
    "events": (),
    "logs": (),
    "checkpoints": (),
    "download": ("-o", "OUT"),
    "follow": (),
    "pictures": (),
}


def test_every_command_that_takes_a_job_is_in_the_next_test():
    root = typer.main.get_command(app)
    takes = {
        name
        for name, command in root.commands.items()
        if any(parameter.name == "job_id" for parameter in getattr(command, "params", ()))
    }
    assert takes == set(TAKES_A_JOB)


@pytest.mark.parametrize("command", list(TAKES_A_JOB))
def test_commands_take_a_name_and_list_the_candidates(run, submit, command, tmp_path):
    rest = [str(tmp_path / "out") if word == "OUT" else word for word in TAKES_A_JOB[command]]
    missing = run(command, "nope", *rest)
    assert missing.status == 1
    assert "no job matches 'nope'" in missing.errors
    assert "jobs" in missing.errors
    first = submit("dog")
    if command not in {"follow", "download", "retry"}:  # which need a job that has ended
        assert run(command, "dog", *rest).status == 0
    second = submit("dog")
    several = run(command, "dog", *rest)
    assert several.status == 2
    assert first.id in several.errors and second.id in several.errors


def test_a_job_is_continued_by_its_name(run, submit):
    job = submit("dog")
    refused = run("train", "--continue", "dog")
    assert "cannot be continued" in refused.errors
    assert "no job matches" not in refused.errors
    assert run("cancel", job.id).status == 0
    assert job.id in run("train", "--continue", "dog").errors
