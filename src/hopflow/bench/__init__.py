"""Benchmarks: speed against other code, as ratios within one run."""
