"""Runs on disk and where they compute: run folders, checkpoints, saved networks, metrics, random streams, devices."""
