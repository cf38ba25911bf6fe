"""Files of a client: archives of projects, model cards, signed records. Read `project_archive` first."""
