"""The tables of the shop, and its queue."""
