"""Evaluation: numbers with their errors, and what the paper says of them."""
