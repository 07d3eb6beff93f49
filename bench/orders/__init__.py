"""The orders in which a streamed epoch can go through the chunk grid, compared."""
