"""`hopflow serve`: a page on which tokens hop live, and an HTTP API. Needs the extra `serve` (FastAPI and uvicorn)."""
