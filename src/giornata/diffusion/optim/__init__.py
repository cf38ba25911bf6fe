"""The training objective and the optimizers that jobs choose from. Read objective first."""
