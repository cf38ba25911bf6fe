"""HTTP that the API and the dashboard share: the cookie of a session, visitors, the status of an error."""
