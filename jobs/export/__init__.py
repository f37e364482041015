"""Export: a model folder for other libraries, checked with the installed ones."""
