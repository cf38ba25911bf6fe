"""HTTP calls of users, a group of routes a file. `giornata.client.client` joins them. Read `project_calls` first."""
