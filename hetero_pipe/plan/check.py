"""What the parts of a plan may be."""

__all__ = ["is_count"]


def is_count(value: object, *, least: int) -> bool:
    """Returns whether a value is a whole number of at least `least`; True and False are none."""
    return type(value) is int and value >= least
