"""What the API and the dashboard share of HTTP: the cookie of a session, and who visits."""
