"""Leave out the fields of requests that an older server does not know, as its OpenAPI document lists them.

A server refuses fields that it does not know, so that no word of a user is overlooked. A node that is newer than its
server sends fields that the server has never heard of. Messages only grow, and a field that is added has a default: a
server without the field does what the default means.
"""

from collections.abc import Iterator, Mapping
from typing import Any

JSON_TYPE = "application/json"


class KnownFields:
    """The bodies of requests that a server takes. `document` is its OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Any] = document.get("components", {}).get("schemas", {})
        self._paths = {tuple(path.strip("/").split("/")): item for path, item in document.get("paths", {}).items()}

    def pruned(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body without the fields that the server does not know. A route that it lacks takes all."""
        schema = self._schema_of(method, path)
        return dict(body) if schema is None else self._prune(body, schema)

    def _schema_of(self, method: str, path: str) -> Mapping[str, Any] | None:
        pieces = tuple(path.partition("?")[0].strip("/").split("/"))
        for template, item in self._paths.items():
            if len(template) == len(pieces) and all(map(_fits, template, pieces)):
                content = item.get(method.lower(), {}).get("requestBody", {}).get("content", {})
                schema: Mapping[str, Any] | None = content.get(JSON_TYPE, {}).get("schema")
                return schema
        return None

    def _prune(self, value: Any, schema: Mapping[str, Any]) -> Any:
        variants = list(self._variants(schema))
        if isinstance(value, list):
            items = next((each["items"] for each in variants if "items" in each), None)
            return value if items is None else [self._prune(each, items) for each in value]
        if not isinstance(value, Mapping):
            return value
        objects = [each for each in variants if "properties" in each]
        if not objects or any(each.get("additionalProperties", True) is not False for each in objects):
            return value
        known = {name: field for each in objects for name, field in each["properties"].items()}
        return {name: self._prune(inner, known[name]) for name, inner in value.items() if name in known}

    def _variants(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas, without references, of which a value has to fit one."""
        if "$ref" in schema:
            yield from self._variants(self._schemas[schema["$ref"].rsplit("/", 1)[-1]])
            return
        choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        if not choices:
            yield schema
        for each in choices:
            yield from self._variants(each)


def _fits(template: str, piece: str) -> bool:
    return template == piece or template.startswith("{")
