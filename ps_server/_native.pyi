"""Types of the native module; what its functions mean is said in table.py and keys.py."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

compiler: str
num_buckets: int

class Table:
    def __init__(
        self,
        *,
        dim: int,
        optimizer: dict[str, Any],  # a spec's JSON values: kind and settings
        initializer: dict[str, Any],  # likewise
        seed: int,
        num_stripes: int = 64,
    ) -> None: ...
    def pull(
        self, keys: NDArray[np.uint64], insert: bool, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]: ...
    def push(self, keys: NDArray[np.uint64], gradients: NDArray[np.float32], step: int) -> None: ...
    def export_rows(
        self, first_bucket: int, end_bucket: int
    ) -> tuple[
        NDArray[np.uint64],
        NDArray[np.float32],
        NDArray[np.float32],
        NDArray[np.uint32],
        NDArray[np.uint64],
    ]: ...
    def import_rows(
        self,
        keys: NDArray[np.uint64],
        weights: NDArray[np.float32],
        state: NDArray[np.float32],
        num_pushes: NDArray[np.uint32],
        steps: NDArray[np.uint64],
    ) -> None: ...
    def clear(self) -> None: ...
    def num_rows(self) -> int: ...
    def memory_bytes(self) -> int: ...
    def last_step(self) -> int: ...

class KeyIndex:
    def __init__(self) -> None: ...
    def find(self, keys: NDArray[np.uint64], insert: bool) -> NDArray[np.int64]: ...
    def keys(self) -> NDArray[np.uint64]: ...
    def __len__(self) -> int: ...

def dedup(
    keys: NDArray[np.uint64], owners: NDArray[np.uint16], num_owners: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]: ...
def bucket_of(keys: NDArray[np.uint64]) -> NDArray[np.uint16]: ...
def hash_text(
    offsets: NDArray[np.int32] | NDArray[np.int64], data: NDArray[np.uint8], seed: int
) -> NDArray[np.uint64]: ...
def hash_integers(
    values: NDArray[np.int64] | NDArray[np.uint64], seed: int
) -> NDArray[np.uint64]: ...
def crc32c(data: bytes | bytearray | memoryview | NDArray[Any], crc: int) -> int: ...
def hash_bytes(data: bytes, seed: int) -> int: ...
