"""Serving: an engine, a scheduler and the clients that reach them."""
