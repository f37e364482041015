"""The work of the jobs on statements of papers. A worker imports these modules; a plan does not."""
