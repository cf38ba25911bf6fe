"""Commands that examine, save and move an installation. Read `backup` first, then `doctor`."""
