"""The bandwidth between this node and the storage."""

import logging
from collections.abc import Callable
from pathlib import Path

from giornata.agent.transfer.transport import ObjectStorage
from giornata.client.retry import Monotonic
from giornata.domain.errors import GiornataError
from giornata.domain.files.transfers import probe_bytes, probe_timeout_s
from giornata.protocol.node.node_checks import ProbeUpload
from giornata.protocol.uploads import Download, UploadTicket

log = logging.getLogger(__name__)

TRIES = 2  # the first may pay for a name's resolution, a handshake, or another's burst


class _Enough(Exception):
    """The link is far too slow: the rest of the transfer tells nothing new."""


class BandwidthProbe:
    """Measures by the same code that moves checkpoints. Files are put into `directory` and taken away again."""

    def __init__(self, storage: ObjectStorage, directory: Path, *, monotonic_s: Monotonic) -> None:
        self._storage, self._directory, self._now_s = storage, directory, monotonic_s

    def download_bytes_per_s(self, what: Download, *, wanted: float) -> float | None:
        """Return the best of a few tries; one that is fast enough suffices. None when no try came to an end."""
        path = self._directory / "probe-down"

        def fetch(meter: "_BandwidthMeter") -> None:
            # By the last bytes that came, not by the end: syncing the file to disk is not the link's time.
            self._storage.download(what, path, progress=meter.moved)

        return self._best(fetch, path, size_bytes=what.size_bytes, wanted=wanted)

    def upload_bytes_per_s(self, where: ProbeUpload, *, wanted: float) -> float | None:
        """Measure as for downloads. An upload ends when the storage answers."""
        path = self._directory / "probe-up"

        def send(meter: "_BandwidthMeter") -> None:
            path.write_bytes(probe_bytes(where.size_bytes))
            ticket = UploadTicket(sha256=where.sha256, exists=False, upload_id="probe", put=where.request)
            meter.start()
            # By a node's clock that is wrong the URL may seem to have run out: it is tried all the same.
            self._storage.upload(path, ticket, renew=lambda _: ticket, progress=meter.check)
            meter.moved(where.size_bytes)

        return self._best(send, path, size_bytes=where.size_bytes, wanted=wanted)

    def _best(
        self, move: "Callable[[_BandwidthMeter], None]", path: Path, *, size_bytes: int, wanted: float
    ) -> float | None:
        best: float | None = None
        for _ in range(TRIES):
            meter = _BandwidthMeter(self._now_s, longest_s=probe_timeout_s(size_bytes, wanted))
            try:
                move(meter)
            except _Enough:
                pass
            except (GiornataError, OSError) as error:
                log.warning("the link could not be measured: %s", error)
                continue
            finally:
                path.unlink(missing_ok=True)
            best = max(best or 0.0, meter.bytes_per_s)
            if best >= wanted:
                break
        return best


class _BandwidthMeter:
    """Counts bytes and seconds since `start`."""

    def __init__(self, now_s: Monotonic, *, longest_s: float) -> None:
        self._now_s, self._longest_s = now_s, longest_s
        self._moved_bytes, self._took_s = 0, 0.0
        self.start()

    def start(self) -> None:
        """Count bytes and seconds from now on."""
        self._started_at_s = self._now_s()

    def moved(self, count: int) -> None:
        """Note that so many bytes have arrived."""
        self._moved_bytes, self._took_s = count, self._now_s() - self._started_at_s
        self.check(count)

    def check(self, count: int) -> None:
        """Note that so many bytes are on their way. Raises _Enough when the transfer takes far too long."""
        took_s = self._now_s() - self._started_at_s
        if took_s > self._longest_s:
            self._moved_bytes, self._took_s = count, took_s
            raise _Enough

    @property
    def bytes_per_s(self) -> float:
        return self._moved_bytes / max(self._took_s, 1e-6)
