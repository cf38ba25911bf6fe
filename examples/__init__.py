"""Programs that show Giornata at work. They use the installed package and are no part of it."""
