"""Reports of runs and sweeps: formatting, tables, charts, and the files report.html and report.md."""
