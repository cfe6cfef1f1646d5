"""Table: the Python face of the native table, the rows of one spec by key."""

from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ps_server import _native
from ps_server.spec import TableSpec

__all__ = ["COMPILER", "Frozen", "Rows", "Table"]

COMPILER: str = _native.compiler
"""Name and version of the compiler that built the native table."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table as columns, aligned by position.

    Attributes:
        keys: `[n]`.
        weights: `[n, dim]`.
        state: Of the optimizer, `[n, state_per_weight * dim]`. Adagrad's is its
            accumulator; Adam's is `m`, then `v`.
        num_pushes: How many pushes touched the row, `[n]`.
        steps: The largest step of a push that touched the row, 0 if none did, `[n]`.
    """

    keys: NDArray[np.uint64]
    weights: NDArray[np.float32]
    state: NDArray[np.float32]
    num_pushes: NDArray[np.uint32]
    steps: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.keys)


class Table:
    """The rows of one spec, by key, in this process's memory.

    All methods may be called from any thread and release the GIL. A row is
    read and written whole; a batch is not a transaction: a pull may see a part
    of a push that runs beside it. Arrays are taken as they are, C-contiguous
    and of the dtype that is written; none is converted.

    >>> from ps_server.spec import SGD, Constant
    >>> table = Table(TableSpec("user", dim=2, optimizer=SGD(0.5), initializer=Constant(1.0)))
    >>> keys = np.array([7, 9, 7], dtype=np.uint64)
    >>> table.push(keys, np.ones((3, 2), dtype=np.float32), step=1)
    >>> table.pull(keys)
    array([[0. , 0. ],
           [0.5, 0.5],
           [0. , 0. ]], dtype=float32)
    >>> table.num_rows
    2

    Attributes:
        spec: What the table is.
    """

    def __init__(self, spec: TableSpec) -> None:
        fields = spec.to_dict()
        self.spec = spec
        self._native = _native.Table(
            dim=spec.dim,
            optimizer=fields["optimizer"],
            initializer=fields["initializer"],
            # Tables of one seed start differently: the name is part of it.
            seed=_native.hash_bytes(spec.name.encode(), spec.seed),
        )

    def pull(
        self,
        keys: NDArray[np.uint64],
        *,
        insert: bool = True,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Returns the weights of keys.

        Args:
            keys: `[n]`; a key may be there twice.
            insert: Whether a missing row is created. The weights that it starts
                with are returned either way.
            out: `[n, dim]`, written and returned; by default a new array, which
                starts at a multiple of 64 bytes.

        Returns:
            `[n, dim]`, in the order of the keys.

        Raises:
            ValueError: An array has another dtype or shape, is not contiguous,
                or `out` is read-only.
        """
        return self._native.pull(keys, insert, out)

    def push(self, keys: NDArray[np.uint64], gradients: NDArray[np.float32], *, step: int) -> None:
        """Applies gradients to the rows of keys; a missing row is created first.

        The gradients of a key that is there more than once are summed, in
        their order, and applied once.

        Args:
            keys: `[n]`.
            gradients: `[n, dim]`.
            step: From 1 to 2**32 - 1: which update of the table this is. Adam's
                bias correction counts it.

        Raises:
            ValueError: An array has another dtype or shape or is not
                contiguous, or the step is out of range.
        """
        self._native.push(keys, gradients, step)

    @property
    def num_rows(self) -> int:
        """Rows there are."""
        return self._native.num_rows()

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, optimizer state, index, and what is kept of recent pulls."""
        return self._native.memory_bytes()

    @property
    def last_step(self) -> int:
        """The largest step that was pushed or imported, 0 before the first."""
        return self._native.last_step()

    def clear(self) -> None:
        """Drops all rows and returns their memory; the last step is 0 again.

        What is frozen stays readable, and keeps the memory until it is released.
        """
        self._native.clear()

    def drop_buckets(self, first_bucket: int, end_bucket: int) -> None:
        """Drops the rows of buckets `[first_bucket, end_bucket)`.

        Their memory is not returned: rows to come use it, those of a frozen
        table once it is released. What is pulled or pushed of these buckets
        meanwhile may stay, so keep it away. The last step stays.

        Raises:
            ValueError: Not `0 <= first_bucket <= end_bucket <= NUM_BUCKETS`.
        """
        self._native.drop_buckets(first_bucket, end_bucket)

    def freeze(self) -> "Frozen":
        """Returns the rows as they are now, which stay so while the table goes on.

        Takes microseconds a stripe, whatever the number of rows. From then on a
        row that changes is copied first, once: a push of such rows takes longer
        (benchmarks/freeze), and memory grows by what is copied. May be frozen
        more than once at a time, for copies of each.

        A push or import that runs beside the call may be in it in part: for a
        cut between two of them, keep them out for the moment of the call. Pulls
        may go on; whether a row that they make is in it is left to chance.
        """
        return Frozen(self._native.freeze())

    def export_rows(self, first_bucket: int, end_bucket: int) -> Rows:
        """Returns a copy of the rows of buckets `[first_bucket, end_bucket)`.

        Freezes the table for the call: pushes may go on meanwhile. For ranges
        of one moment, or a cut between two pushes, see `freeze`. A call reads
        the whole index whatever its range, so a few wide ranges are cheaper
        than many narrow ones.

        Returns:
            Rows in the order of their keys: equal for equal content, whatever
            came first. Each array starts at a multiple of 64 bytes.

        Raises:
            ValueError: Not `0 <= first_bucket <= end_bucket <= NUM_BUCKETS`.
        """
        return Rows(*self._native.export_rows(first_bucket, end_bucket))

    def import_rows(self, rows: Rows) -> None:
        """Creates or overwrites rows; of equal keys the last one stays.

        Raises:
            ValueError: A column has another dtype or shape or is not
                contiguous, or a step is above 2**32 - 1.
        """
        self._native.import_rows(rows.keys, rows.weights, rows.state, rows.num_pushes, rows.steps)


class Frozen:
    """The rows of a table as they were when it was frozen, by `Table.freeze`.

    Until it is released, at the latest by the garbage collector, rows that
    change are copied. A context manager that releases. May be used from any
    thread, and outlives what becomes of the table: also when that is cleared,
    or buckets are dropped, the rows are there.

    >>> from ps_server.spec import NUM_BUCKETS, SGD, Constant
    >>> table = Table(TableSpec("user", dim=1, optimizer=SGD(0.5), initializer=Constant(1.0)))
    >>> keys = np.array([7], dtype=np.uint64)
    >>> table.push(keys, np.ones((1, 1), dtype=np.float32), step=1)
    >>> with table.freeze() as frozen:
    ...     table.push(keys, np.ones((1, 1), dtype=np.float32), step=2)
    ...     frozen.export_rows(0, NUM_BUCKETS).weights
    array([[0.5]], dtype=float32)

    Attributes:
        num_rows: Rows there were.
        last_step: The largest step that was pushed or imported, 0 before the first.
    """

    def __init__(self, native: _native.Frozen) -> None:
        self.num_rows = native.num_rows()
        self.last_step = native.last_step()
        self._native: _native.Frozen | None = native  # goes when no call uses it any more

    def export_rows(self, first_bucket: int, end_bucket: int) -> Rows:
        """Returns a copy of the rows of buckets `[first_bucket, end_bucket)`.

        As `Table.export_rows`, but of the moment of the freeze, also when it is
        called again. Pulls and pushes wait for it for microseconds. The first call
        reads the whole index, and keeps the keys: 8 bytes a row.

        Raises:
            ValueError: Not `0 <= first_bucket <= end_bucket <= NUM_BUCKETS`, or
                buckets of them were released.
            RuntimeError: It was released.
        """
        return Rows(*self._held().export_rows(first_bucket, end_bucket))

    def release_buckets(self, end_bucket: int) -> None:
        """Lets the rows of buckets below `end_bucket` go, which have been exported.

        Pushes copy them no more. An export of them is refused from now on.

        Raises:
            ValueError: Not `0 <= end_bucket <= NUM_BUCKETS`.
            RuntimeError: All of it was released.
        """
        self._held().release_buckets(end_bucket)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the rows that were copied so far, and of what finds rows.

        Raises:
            RuntimeError: It was released.
        """
        return self._held().memory_bytes()

    def release(self) -> None:
        """Lets the rows go: the table copies no more. Again, it does nothing.

        An export that runs beside it ends as if it came first.
        """
        self._native = None

    def __enter__(self) -> "Frozen":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _held(self) -> _native.Frozen:
        native = self._native  # read once: another thread may release
        if native is None:
            raise RuntimeError(
                "a frozen table is read before its release, but it was released; freeze it again"
            )
        return native
