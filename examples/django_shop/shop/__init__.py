"""A shop: orders, and the payments that a worker makes."""
