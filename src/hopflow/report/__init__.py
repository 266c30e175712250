"""Report: a run, or several, as pictures and one offline page."""
