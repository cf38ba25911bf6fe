"""Options of commands in the words of the command line. Read `option_types` first."""
