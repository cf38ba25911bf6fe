"""The HTTP calls for the end of life: deletion, retention, pins."""

from giornata.client.calls.operator_calls import quoted
from giornata.client.connection import Connection
from giornata.protocol.project.end_of_life import (
    Deletion,
    Pin,
    PinList,
    ProjectRetention,
    RetentionPreview,
    SetRetention,
)


class EndOfLifeCalls:
    """The part of `giornata.client.client.Client` that deletes things, and says how long others are kept."""

    _connection: Connection

    def delete_job(self, job_id: str, *, cancel: bool = False) -> Deletion:
        """Delete a job with its results and history. Raises IllegalTransition for one that has not ended, unless
        `cancel`.
        """
        path = f"/v1/jobs/{quoted(job_id)}"
        return self._connection.call("DELETE", path, Deletion, params={"cancel": cancel}, repeatable=False)

    def delete_dataset(self, dataset_id: str) -> Deletion:
        """Delete a dataset. Raises Conflict while jobs read it that have not ended."""
        return self._connection.call("DELETE", f"/v1/datasets/{quoted(dataset_id)}", Deletion, repeatable=False)

    def delete_project(self, project_id: str, *, confirm: str, cancel: bool = False) -> Deletion:
        """Delete a project with all that it owns. `confirm` is its id. For an owner of the project."""
        path = f"/v1/projects/{quoted(project_id)}"
        params: dict[str, str | bool] = {"confirm": confirm, "cancel": cancel}
        return self._connection.call("DELETE", path, Deletion, params=params, repeatable=False)

    def retention(self, project_id: str) -> ProjectRetention:
        """Return how many days the project keeps what; None: until somebody deletes it."""
        return self._connection.call("GET", _retention(project_id), ProjectRetention)

    def set_retention(self, project_id: str, retention: SetRetention) -> ProjectRetention:
        """Set how many days the project keeps what, all classes at once. For an owner of the project."""
        return self._connection.call("PUT", _retention(project_id), ProjectRetention, body=retention)

    def preview_retention(self, project_id: str, retention: SetRetention | None = None) -> RetentionPreview:
        """Return what retention would take now, by what is set or by `retention`. For an owner of the project."""
        path = f"{_retention(project_id)}/preview"
        if retention is None:
            return self._connection.call("GET", path, RetentionPreview)
        return self._connection.call("POST", path, RetentionPreview, body=retention)

    def pin(self, target: str) -> Pin:
        """Keep a job, a dataset or a checkpoint (`JOB@STEP`) from retention and deletion. Raises NotFound."""
        return self._connection.call("PUT", f"/v1/pins/{quoted(target)}", Pin)

    def unpin(self, target: str) -> Pin:
        """Let retention and deletion take it again. Raises NotFound."""
        return self._connection.call("DELETE", f"/v1/pins/{quoted(target)}", Pin)

    def pins(self) -> tuple[Pin, ...]:
        """Return all that is pinned in the project."""
        return tuple(self._connection.call("GET", "/v1/pins", PinList).items)


def _retention(project_id: str) -> str:
    return f"/v1/projects/{quoted(project_id)}/retention"
