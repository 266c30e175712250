"""The text study: what the paper claims about real text, as a queue of cells (variant × seed), one JSON file each."""
