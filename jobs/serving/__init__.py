"""Serving of models over HTTP."""
