"""Documents: read and divided into chunks, and kept with their vectors in databases."""
