"""The commands of `giornata models` against a real server."""

from tests.fixtures.model_files import SDXL_BASE, SDXL_LORA, model_file

from giornata.cli.ui.output import EXIT_BAD_INPUT


def test_file_is_uploaded_registered_listed_pinned_and_removed(run, tmp_path):
    file = tmp_path / "base.safetensors"
    file.write_bytes(model_file(SDXL_BASE))
    added = run("models", "add", "my-base", str(file))
    assert "my-base" in added.output and "base for sdxl" in added.output
    assert run("models", "pin", "my-base", "--json").json["pinned"] is True
    listed = run("models", "list")
    assert "my-base" in listed.output and "pinned" in listed.output
    assert "arriving" in run("models", "coverage", "my-base").output
    nobody = {"name": "my-base", "nodes": 0, "gpu": 0, "host": 0, "disk": 0, "fetching": 0}
    assert run("models", "coverage", "my-base", "--json").json == nobody
    assert run("models", "pin", "my-base", "--off", "--json").json["pinned"] is False
    assert run("models", "remove", "my-base", "--json").json == {"name": "my-base", "removed": True}
    assert run("models", "list", "--json").json == {"items": []}


def test_file_of_another_format_is_refused_before_it_is_sent(run, tmp_path):
    file = tmp_path / "base.ckpt"
    file.write_bytes(b"\x80\x02}")
    refused = run("models", "add", "my-base", str(file))
    assert refused.status == EXIT_BAD_INPUT and "only .safetensors files are taken" in refused.errors


def test_pickle_in_the_clothes_of_a_safetensors_file_is_refused_by_the_server(run, tmp_path):
    file = tmp_path / "base.safetensors"
    file.write_bytes(b"\x80\x02}q\x00(X\x05\x00\x00\x00stateq\x01K\x01u.")
    refused = run("models", "add", "my-base", str(file))
    assert refused.status == EXIT_BAD_INPUT and "is pickled" in refused.errors


def test_faults_of_options_are_told_by_their_names(run, tmp_path):
    file = tmp_path / "lora.safetensors"
    file.write_bytes(model_file(SDXL_LORA))
    refused = run("models", "add", "own/er", str(file))
    assert refused.status == EXIT_BAD_INPUT and "NAME" in refused.errors
    refused = run("models", "add", "x", str(tmp_path / "none.safetensors"))
    assert refused.status == EXIT_BAD_INPUT and "there is no such file" in refused.errors
