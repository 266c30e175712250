"""The operating system: atomic writes, child processes, bounded reads, progress, and text that is safe to print."""
