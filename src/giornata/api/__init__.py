"""The HTTP interface: it translates requests to use cases, and never decides. Read `app`, then `job_routes.jobs`."""
