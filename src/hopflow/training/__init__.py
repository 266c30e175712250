"""Training: what a step draws, which rows it pairs, and the averages it keeps."""
