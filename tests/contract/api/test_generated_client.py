"""Types that a public generator makes from the OpenAPI document are good enough to submit a job with."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import ValidationError
from tests.fixtures.served import Served, a_dataset, serving

TRAIN = {"pretrained_model_name_or_path": "some/model", "instance_prompt": "sks", "max_train_steps": 10}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("home")) as served:
        yield served


@pytest.fixture(scope="module")
def made(home: Served, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module that the generator makes of what the server serves."""
    folder = tmp_path_factory.mktemp("made")
    document, module = folder / "openapi.json", folder / "made_types.py"
    document.write_text(home.http.get(f"{home.url}/openapi.json").text)
    subprocess.run(
        [
            *(sys.executable, "-m", "datamodel_code_generator", "--input", str(document), "--output", str(module)),
            *("--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel", "--no-formatters"),
        ],
        check=True,
        capture_output=True,
        cwd=folder,
        timeout=600,
    )
    spec = importlib.util.spec_from_file_location("made_types", module)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["made_types"] = found  # its annotations are looked up there
    spec.loader.exec_module(found)
    return found


def post(home: Served, job: object) -> dict[str, object]:
    content = job.model_dump_json(exclude_unset=True)  # type: ignore[attr-defined]
    headers = {"Content-Type": "application/json"}
    reply = home.call("POST", "/v1/jobs", home.keys.member, content=content, headers=headers)
    assert reply.status_code == 201, reply.text
    return dict(reply.json())


def test_a_typed_job_of_each_kind_is_submitted(home: Served, made: ModuleType, tmp_path: Path) -> None:
    dataset = a_dataset(home.client(), tmp_path).id
    spec = made.TrainSpec(**TRAIN, dataset=dataset, rank=8, learning_rate=1)
    reply = made.Job.model_validate(post(home, made.SubmitTrainJob(kind="train", spec=spec, name="typed")))
    assert (reply.kind, reply.name, reply.spec["rank"], str(reply.state.value)) == ("train", "typed", 8, "queued")
    own = made.SubmitOwnJob(kind="x-count", spec={"steps": 5})
    assert made.Job.model_validate(post(home, own)).spec == {"steps": 5}


def test_the_kind_says_which_type_it_is(made: ModuleType) -> None:
    given = {"kind": "train", "spec": {**TRAIN, "dataset": "ds_0"}}
    assert isinstance(made.SubmitJob.model_validate(given).root.root, made.SubmitTrainJob)
    assert isinstance(made.SubmitJob.model_validate({"kind": "x-a", "spec": {}}).root, made.SubmitOwnJob)


@pytest.mark.parametrize(
    "wrong", [{"rank": 1000}, {"optimizer": "sgdd"}, {"instance_promt": "sks"}, {"dataset": None}]
)
def test_generated_types_refuse_spec_that_server_would_refuse(made: ModuleType, wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        made.TrainSpec(**{**TRAIN, "dataset": "ds_0", **wrong})


def test_pages_are_typed_too(home: Served, made: ModuleType) -> None:
    post(home, made.SubmitOwnJob(kind="x-count", spec={"steps": 5}))
    page = home.call("GET", "/v1/jobs", home.keys.member).text
    assert made.JobPage.model_validate(json.loads(page)).items[0].urls.self.startswith("/v1/jobs/")
