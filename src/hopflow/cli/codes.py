"""Exit codes: success, a bug in hopflow, the user's input, the environment, interrupted (finished work is saved)."""

OK, BUG, USER, ENVIRONMENT, INTERRUPTED = range(5)
