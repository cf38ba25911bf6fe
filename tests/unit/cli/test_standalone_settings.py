"""Settings that a run without a server takes from its environment."""

from pydantic import SecretStr

from giornata.cli.jobs.options.standalone_options import StandaloneOptions
from giornata.cli.settings import Settings
from giornata.cli.standalone import engine_line, wandb_key

NOTHING = {"directory": None, "checkpoint_to": None, "output": None, "webhook": None}


def test_the_models_that_it_fetches_are_bounded_as_on_a_node():
    line = engine_line(Settings(model_cache_bytes=12345))
    assert line[line.index("--model-cache-bytes") + 1] == "12345"
    default = engine_line(Settings())
    assert int(default[default.index("--model-cache-bytes") + 1]) == 100 * 2**30


def test_the_bound_is_no_option_of_jobs_on_a_server():
    assert [fault.where for fault in StandaloneOptions(**NOTHING, model_cache_bytes=5).misplaced()] == [
        "--model-cache-bytes"
    ]
    assert StandaloneOptions(**NOTHING).misplaced() == []


def test_wandbs_own_variable_has_the_key():
    assert wandb_key({"WANDB_API_KEY": " a-key-of-mine\n"}) == SecretStr("a-key-of-mine")
    assert wandb_key({"WANDB_API_KEY": ""}) is None is wandb_key({})
