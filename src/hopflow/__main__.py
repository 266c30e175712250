"""`python -m hopflow` is the command line, too: what torchrun starts is a module."""

import sys
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":
    with suppress(OSError):  # a working directory that was deleted has no name
        if not sys.flags.safe_path and sys.path[0] == str(Path.cwd()):
            del sys.path[0]  # so that a torch.py in this folder is not imported
    from .cli import main

    main()
