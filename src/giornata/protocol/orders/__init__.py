"""Messages about orders of pictures and the gallery. Read `order_pictures` first."""
