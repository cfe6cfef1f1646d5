"""What does the `hetero-pipe` command do?

Each sub-command is a module: it reads its arguments and calls the package that
does the work. Nothing here is more than that.
"""

from hetero_pipe.cli.main import main

__all__ = ["main"]
