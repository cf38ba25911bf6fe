"""The checks of `giornata doctor`. Read `findings` first, then `examine`, which lists the checks in order of harm."""
