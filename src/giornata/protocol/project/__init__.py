"""Messages about projects: keys, money, quotas, webhooks, the end of life. Read `admin` first."""
