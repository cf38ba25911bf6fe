"""Webhooks: events become deliveries (fan_out), and deliveries are sent (send_due). Read fan_out first."""
