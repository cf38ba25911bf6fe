"""Submit jobs from routes: many in one transaction, and orders of pictures once their models are there."""

from dataclasses import replace

import anyio.to_thread
from fastapi import Request

from giornata.control.jobs.submission.order_models import bring_order_models
from giornata.control.jobs.submission.submit import JobRequest, Submitted
from giornata.domain.generation.picture import ORDER_KINDS


async def submitted(request: Request, asked: JobRequest) -> Submitted:
    """Return the job, and whether this request made it. Raises what `control.jobs.submission.submit.submit` raises.

    Other requests do not wait for the models of an order, which may have to be downloaded.
    """
    state = request.app.state
    if asked.request.kind in ORDER_KINDS:
        parsed = await anyio.to_thread.run_sync(bring_order_models, state.context, asked.caller, asked.request)
        # Prompts by the thousand take a second: they are not read again in the transaction that others share.
        asked = replace(asked, parsed_spec=parsed)
    answer: Submitted = await state.submissions.ask(asked)
    return answer
