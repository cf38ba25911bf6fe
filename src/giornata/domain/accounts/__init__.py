"""Rules of people: signing in, notifications, and the audit log."""
