"""`giornata lora`: what it refuses before any model code is loaded."""

import pytest
from typer.testing import CliRunner

from giornata.cli.main import app


def faults_of(*arguments):
    done = CliRunner().invoke(app, ["lora", *arguments])
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "sv_fro"), ("--target", "is missing")),
        (("--target", "0.9"), ("--target", "means nothing")),
        (("--method", "sv_fro", "--target", "9"), ("between 0 and 1",)),
        (("--method", "sv_ratio", "--target", "0.5"), ("below 1",)),
        (("--alpha", "0"), ("--alpha", "above 0")),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, arguments, words):
    out = tmp_path / "out.safetensors"
    said = faults_of("resize", "in.safetensors", "-o", str(out), "--rank", "4", *arguments)
    assert all(word in said for word in words)


def test_all_faults_of_a_merge_come_at_once(tmp_path):
    said = faults_of("merge", "a.safetensors=0", "b.safetensors=nan", "-o", str(tmp_path / "out.txt"))
    assert all(word in said for word in ("a.safetensors", "b.safetensors", "not a .safetensors file"))


def test_a_file_that_is_there_is_not_written_over_unasked(tmp_path):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"precious")
    assert "--force" in faults_of("resize", "in.safetensors", "-o", str(out), "--rank", "4")
    assert out.read_bytes() == b"precious"
