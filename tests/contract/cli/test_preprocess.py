"""`giornata preprocess`."""

import hashlib


def photos(folder, *names):
    files = [folder / name for name in names]
    for file in files:
        file.write_bytes(file.name.encode())
    return [str(file) for file in files]


def test_files_are_uploaded_and_ordered_in_their_order(run, served, tmp_path):
    files = photos(tmp_path, "b.png", "a.png")
    done = run("preprocess", *files, "--annotator", "canny", "--set", "low_threshold=50", "--no-wait")
    assert done.status == 0, done.errors
    (job,) = served.client(served.keys.admin).jobs(include=["spec"])
    hashes = [hashlib.sha256(name).hexdigest() for name in (b"b.png", b"a.png")]
    assert (job.kind, job.total_steps) == ("preprocess", 2)
    assert job.spec["images"] == hashes
    assert (job.spec["annotator"], job.spec["annotator_params"]) == ("canny", {"low_threshold": 50})


def test_all_faults_are_told_before_anything_is_uploaded(run, served, tmp_path):
    (tmp_path / "full").mkdir()
    done = run("preprocess", str(tmp_path / "none.png"), str(tmp_path), "--annotator", "cany", "--name", "\n")
    assert done.status == 2
    assert "--annotator: there is no annotator cany" in done.errors
    assert "none.png does not exist" in done.errors
    assert "is a folder" in done.errors
    params = run("preprocess", *photos(tmp_path, "a.png"), "--annotator", "canny", "--set", "low_threshold=999")
    assert "--set low_threshold: is 999" in params.errors
    assert not list(served.client(served.keys.admin).jobs())
