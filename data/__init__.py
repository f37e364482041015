"""Data: file formats, table schemas, splits, negatives and generated questions. Imports neither Ray nor torch."""
