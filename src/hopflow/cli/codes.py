"""How a command ends: ok, a bug of hopflow's, the user's input, the environment, interrupted and saved."""

OK, BUG, USER, ENVIRONMENT, INTERRUPTED = range(5)
