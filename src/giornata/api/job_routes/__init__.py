"""Routes of jobs, orders of pictures, models and files. Read `jobs` first."""
