"""Recipes: Python functions that return the steps of a system and the table at its end."""
