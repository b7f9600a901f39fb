"""The report of runs: one HTML page."""
