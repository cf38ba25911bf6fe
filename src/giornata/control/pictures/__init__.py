"""Orders of pictures: placing, leasing, uploads, results, and their end. Read `place_order` first, then `lease`."""
