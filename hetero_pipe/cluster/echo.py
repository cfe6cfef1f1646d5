"""The other process of `profile_shared_memory`: run as a script, `echo.py DESCRIPTOR SIZE`.

Reads numbers of 8 bytes from stdin, copies that many bytes out of the shared
memory, and answers each with a byte. Ends with its stdin.
"""

import mmap
import sys

__all__: list[str] = []


def _main() -> None:
    descriptor, size = int(sys.argv[1]), int(sys.argv[2])
    words = open(0, "rb", buffering=0)  # noqa: SIM115  # as long as the process
    answers = open(1, "wb", buffering=0)  # noqa: SIM115
    target = memoryview(bytearray(size))
    with mmap.mmap(descriptor, size) as memory, memoryview(memory) as shared:
        while word := words.read(8):
            num_bytes = int.from_bytes(word, "little")
            target[:num_bytes] = shared[:num_bytes]
            answers.write(b".")


if __name__ == "__main__":
    _main()
