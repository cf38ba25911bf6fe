"""Rules of people: signing in, notifications, and the audit log. Read `sign_in` first."""
