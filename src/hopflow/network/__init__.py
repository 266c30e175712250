"""How hopflow calls a network: features and head, precision, batches, compilation, evaluation mode."""
