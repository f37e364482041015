"""Recipes: Python functions that return the steps of a run and its summary table."""
