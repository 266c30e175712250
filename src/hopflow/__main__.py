"""`python -m hopflow` is the command line, too: what torchrun starts is a module."""

from .cli import main

if __name__ == "__main__":
    main()
