"""A download that moves is no engine that is stuck, and one that does not move is not hidden."""

import threading
from pathlib import Path

from giornata.diffusion.base.hub import Arrival, arriving


def test_arrival_sees_growing_download_and_ignores_existing_files(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--a--b" / "blobs"
    folder.mkdir(parents=True)
    (folder / "old").write_bytes(b"x" * 100_000)
    arrival = Arrival(tmp_path / "hub", tmp_path / "absent")
    assert not arrival.moved()
    half = folder / "new.incomplete"
    half.write_bytes(b"x" * 100_000)
    assert arrival.moved()
    assert not arrival.moved()
    with half.open("ab") as file:
        file.write(b"x" * 100_000)
    assert arrival.moved()
    half.rename(folder / "new")
    assert not arrival.moved()


def test_a_file_that_was_made_full_size_at_once_still_arrives(tmp_path: Path) -> None:
    whole = tmp_path / "weights"
    with whole.open("wb") as file:
        file.truncate(10_000_000)
        arrival = Arrival(tmp_path)
        file.write(b"x" * 100_000)
        file.flush()
        assert arrival.moved()


def test_download_callback_is_called_only_while_bytes_arrive(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    cache.mkdir()
    heard, calls = threading.Event(), []

    def told() -> None:
        calls.append(1)
        heard.set()

    with arriving(cache, told, every_s=0.01):
        (tmp_path / "elsewhere").write_bytes(b"x" * 100_000)
        assert not heard.wait(0.1)
        (tmp_path / "xet").mkdir()
        (tmp_path / "xet" / "chunk").write_bytes(b"x" * 100_000)
        assert heard.wait(10)
    count = len(calls)
    (cache / "late").write_bytes(b"x" * 100_000)
    assert len(calls) == count


def test_folders_that_go_while_it_looks_do_not_end_it(tmp_path: Path) -> None:
    over = threading.Event()

    def churn() -> None:
        passing = tmp_path / "models--a--b" / "tmp"
        while not over.is_set():
            passing.mkdir(parents=True)
            passing.rmdir()
            passing.parent.rmdir()

    client = threading.Thread(target=churn)
    client.start()
    try:
        arrival = Arrival(tmp_path)
        assert not any(arrival.moved() for _ in range(2000))
        (tmp_path / "weights").write_bytes(b"x" * 100_000)
        assert arrival.moved()
    finally:
        over.set()
        client.join()
