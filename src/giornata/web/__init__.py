"""HTTP that the API and the dashboard share: session cookies, visitors, statuses of errors. Read `visitors` first."""
