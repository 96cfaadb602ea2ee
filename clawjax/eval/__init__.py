"""Scores of task sets through harnesses, and the pages that show them."""
