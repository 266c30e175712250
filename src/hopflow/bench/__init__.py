"""Bench: side-by-side speed, as ratios within one run."""
