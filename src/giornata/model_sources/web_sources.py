"""The sources of model files on the web: any https URL, files on the hub, versions on Civitai."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote, urlsplit

from giornata.control.ports.model_registry import RemoteModel, RemoteReference
from giornata.model_sources.civitai import CIVITAI_URL, find_version
from giornata.model_sources.web_file import WebReader
from giornata.protocol.model_references import CivitaiVersion
from giornata.protocol.training.model_names import HubFile

HUB_URL = "https://huggingface.co"


class WebSources:
    """Implements `giornata.control.ports.model_registry.ModelSources` with GETs over HTTP."""

    def __init__(self, reader: WebReader, *, hub_url: str = HUB_URL, civitai_url: str = CIVITAI_URL) -> None:
        self._reader, self._hub_url, self._civitai_url = reader, hub_url, civitai_url

    def find(self, reference: RemoteReference, *, token: str | None, where: str) -> RemoteModel:
        """Return what the source says of the file. See `ModelSources`."""
        if isinstance(reference, CivitaiVersion):
            return find_version(self._reader, reference, base_url=self._civitai_url, token=token, where=where)
        if isinstance(reference, HubFile):
            path = f"{quote(reference.repository)}/resolve/{quote(reference.revision or 'main', safe='')}"
            return self._looked_up(reference, f"{self._hub_url}/{path}/{quote(reference.file)}", token, where)
        return RemoteModel(name=urlsplit(reference.url).path.rpartition("/")[2] or reference.url, url=reference.url)

    @contextmanager
    def open(self, model: RemoteModel, *, token: str | None, where: str) -> Iterator[Iterator[bytes]]:
        """Open the file's bytes. See `ModelSources`."""
        with closing(self._reader.chunks(model.url, token=token, where=where)) as chunks:
            yield chunks

    def _looked_up(self, file: HubFile, url: str, token: str | None, where: str) -> RemoteModel:
        """Ask the hub itself, which says hash and size of a large file before it redirects to its storage."""
        with closing(self._reader.ask(url, token=token, where=where)) as response:
            told = response.headers
        found = re.fullmatch(r'"?([0-9a-f]{64})"?', told.get("X-Linked-Etag", ""))
        size = told.get("X-Linked-Size", "")
        return RemoteModel(
            name=file.file.rpartition("/")[2],
            url=url,
            sha256=None if found is None else found[1],
            size_bytes=int(size) if re.fullmatch(r"[0-9]{1,15}", size) else None,
        )
