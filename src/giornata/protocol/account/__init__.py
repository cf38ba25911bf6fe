"""Messages about people: accounts, sessions, notifications, and the audit log. Read `people` first."""
