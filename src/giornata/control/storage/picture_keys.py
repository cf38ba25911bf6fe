"""The place of a picture's file in storage, which is a function of its lease and its hash."""


def picture_key(project_id: str, attempt_id: str, sha256: str) -> str:
    """Return the key of a picture's file."""
    return f"pictures/{project_id}/{attempt_id}/{sha256}"
