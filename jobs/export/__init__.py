"""Export: a model folder for other libraries, checked with those that are installed."""
