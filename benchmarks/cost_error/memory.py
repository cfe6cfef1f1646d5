"""Memory of a process, as Linux tells it."""

from pathlib import Path


def resident_bytes(pid: int | str = "self") -> int:
    """Returns the bytes of a process that are in memory."""
    return _status(pid, "VmRSS")


def peak_bytes(pid: int | str = "self") -> int:
    """Returns the most of them since the last `reset_peak`, or ever."""
    return _status(pid, "VmHWM")


def reset_peak(pid: int | str = "self") -> None:
    """Has the peak begin again at what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int | str, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status tells {name} of a process that runs, got none")
