"""Optimal transport on a cost matrix: exact assignment, Sinkhorn, and how pairs are drawn from a plan."""
