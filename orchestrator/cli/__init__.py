"""The command line: commands, console output, live view."""
