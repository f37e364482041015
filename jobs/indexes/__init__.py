"""Search indexes of documents, and search in them."""
