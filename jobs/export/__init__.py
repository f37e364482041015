"""Export: a model folder for other libraries, and the commands that serve it."""
