"""Routes of projects: keys, members, limits, money, webhooks. Read `admin` first."""
