"""Query parameters that every list shares."""

from typing import Annotated

from fastapi import Path, Query

MAX_PAGE = 500
LARGEST_ID = 2**63 - 1

Cursor = Annotated[str | None, Query(max_length=1024, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")]
After = Annotated[int, Query(ge=0, le=LARGEST_ID, description="Only what comes after this id.")]
AfterStep = Annotated[int, Query(ge=-1, le=LARGEST_ID, description="Only later steps than this.")]

JobId = Annotated[str, Path(max_length=64)]
UploadId = Annotated[str, Path(max_length=64)]
