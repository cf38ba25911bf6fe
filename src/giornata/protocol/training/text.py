"""Strings of a spec."""

from typing import Annotated

from pydantic import StringConstraints

Prompt = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
