"""Orders of pictures, their leases and results. Read picture_orders first, then picture_claiming."""
