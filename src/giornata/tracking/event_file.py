"""A writer of event files for TensorBoard."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from PIL import Image
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter

NAME = "events.out.tfevents"


class EventFile:
    """Writes one event file. Where TensorBoard has events of `purge_step` and of later steps from older files, it
    drops them. The file has no other time than those of the rows."""

    def __init__(self, path: Path, purge_step: int | None = None) -> None:
        path.unlink(missing_ok=True)
        self._writer = RecordWriter(str(path))
        self._write(Event(wall_time=0.0, file_version="brain.Event:2"))
        if purge_step is not None:
            self._write(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: Mapping[str, float | bytes], *, time_s: float) -> None:
        """Add a row. Bytes are a PNG file, which TensorBoard shows."""
        found = [_shown(tag, each) for tag, each in values.items()]
        self._write(Event(wall_time=time_s, step=step, summary=Summary(value=found)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())


def _shown(tag: str, value: float | bytes) -> Summary.Value:
    if not isinstance(value, bytes):
        return Summary.Value(tag=tag, simple_value=value)
    width, height = Image.open(BytesIO(value)).size
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=value)
    return Summary.Value(tag=tag, image=image)
