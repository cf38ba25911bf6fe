"""The HTTP calls of the registry of model files."""

from collections.abc import Iterator

from giornata.client.calls.operator_calls import OperatorCalls, quoted
from giornata.client.connection import LONG_TIMEOUT
from giornata.protocol.models import AddModel, ChangeModel, ModelCoverage, ModelPage, RegisteredModel


class ModelCalls(OperatorCalls):
    """The part of `giornata.client.client.Client` that names model files."""

    def add_model(self, model: AddModel) -> RegisteredModel:
        """Give a model file a name. The server fetches a reference before it answers, which may take minutes.

        Raises InvalidInput, and Unavailable when the source fails, or when the server fetches the file for somebody
        already: the same call later finds it.
        """
        path = "/v1/models"
        return self._connection.call(
            "POST", path, RegisteredModel, body=model, timeout=LONG_TIMEOUT, repeatable=False
        )

    def models(self) -> Iterator[RegisteredModel]:
        """Yield the project's models and the shared ones, newest first."""
        return self._pages("/v1/models", ModelPage)

    def model_coverage(self, name: str) -> ModelCoverage:
        """Return how many of the connected nodes hold a model. Raises NotFound."""
        return self._connection.call("GET", "/v1/models/coverage", ModelCoverage, params={"name": name})

    def pin_model(self, name: str, *, pinned: bool = True) -> RegisteredModel:
        """Keep a model also when it is not used, or no longer. Raises NotFound."""
        body = ChangeModel(pinned=pinned)
        return self._connection.call("PATCH", f"/v1/models/{quoted(name)}", RegisteredModel, body=body)

    def remove_model(self, name: str) -> RegisteredModel:
        """Forget one of the project's models. Raises NotFound."""
        return self._connection.call("DELETE", f"/v1/models/{quoted(name)}", RegisteredModel, repeatable=False)
