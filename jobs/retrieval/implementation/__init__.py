"""The work of the retrieval jobs. A worker imports these modules; a plan does not."""
