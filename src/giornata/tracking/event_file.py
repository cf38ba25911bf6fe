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

    def add(self, step: int, values: Mapping[str, float], *, time_s: float, png: bytes | None = None) -> None:
        """Add a row. TensorBoard shows `png` as `evaluation/samples`."""
        found = [Summary.Value(tag=tag, simple_value=each) for tag, each in values.items()]
        if png is not None:
            width, height = Image.open(BytesIO(png)).size
            image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
            found.append(Summary.Value(tag="evaluation/samples", image=image))
        self._write(Event(wall_time=time_s, step=step, summary=Summary(value=found)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
