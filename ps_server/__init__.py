"""Where do the rows of a job live? In the tables of parameter servers.

The servers' side of hetero_pipe: what a table is, how it is stored, how it is
served. It installs and runs without Paddle and never imports `hetero_pipe`.
"""

from ps_server.version import VERSION

__all__ = ["__version__"]

__version__ = VERSION
