"""The reference of the HTTP API, as the package's own OpenAPI document says it."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, page


def show(visit: Visit) -> Response:
    """Show the operations of one tag; the tags lead to each other."""
    document = visit.request.app.openapi()
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["others"])[0]
            groups[tag].append(_operation(path, method, operation))
    given = visit.query("tag")
    tag = given if given in groups else next(iter(groups))
    described = document["info"]["description"]
    return render(
        visit, "api_reference.html", tags=list(groups), tag=tag, operations=groups[tag], described=described
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Mapping[str, Any]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return {
        "id": operation.get("operationId", f"{method} {path}"),
        "method": method.upper(),
        "path": path,
        "description": operation.get("description", ""),
        "parameters": [
            {
                "name": each["name"],
                "place": each["in"],
                "required": each.get("required", False),
                "description": each.get("description", ""),
            }
            for each in operation.get("parameters", [])
        ],
        "body": body.get("$ref", "").rpartition("/")[2],
        "responses": {code: each.get("description", "") for code, each in operation["responses"].items()},
    }


ROUTES = (page("/api", show),)
