"""Evaluation: bounds on test text, metrics of samples, transport costs; each number with its standard error."""
