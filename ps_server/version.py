"""The version of this package and of `hetero_pipe`, which are released as one."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
