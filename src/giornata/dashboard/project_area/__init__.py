"""Pages of a project: members, keys, limits, money, the audit log. Read `project_pages` first."""
