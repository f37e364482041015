"""Rows in, rows out: formats, schemas, splits and generated questions; no Ray, no torch."""
