"""Table: the Python face of the native table, the rows of one spec by key."""

from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ps_server import _native
from ps_server.spec import NUM_BUCKETS, TableSpec

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
        self._is_frozen = False

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
        """Drops all rows and returns their memory; the last step is 0 again."""
        self._native.clear()

    def export_rows(self, first_bucket: int, end_bucket: int) -> Rows:
        """Returns a copy of the rows of buckets `[first_bucket, end_bucket)`.

        Pushes may go on meanwhile: each row is whole, but rows are of different
        moments, and one created meanwhile may be missing. For a cut at one
        step, let the pushes rest. A call reads the whole index whatever its
        range, so a few wide ranges are cheaper than many narrow ones.

        Returns:
            Rows in the order of their keys: equal for equal content, whatever
            came first. Each array starts at a multiple of 64 bytes.

        Raises:
            ValueError: Not `0 <= first_bucket <= end_bucket <= NUM_BUCKETS`.
            RuntimeError: The table was cleared meanwhile.
        """
        return Rows(*self._native.export_rows(first_bucket, end_bucket))

    def freeze(self) -> "Frozen":
        """Returns the rows as they are now, which stay so while the table goes on.

        A push or import that runs beside the call may be in it in part: for a
        cut between two of them, keep them out for the moment of the call. Pulls
        may go on; whether a row that they make is in it is left to chance.

        Raises:
            RuntimeError: The table is frozen already; at most one frozen state
                is held at once.
        """
        return Frozen(self)

    def import_rows(self, rows: Rows) -> None:
        """Creates or overwrites rows; of equal keys the last one stays.

        Raises:
            ValueError: A column has another dtype or shape or is not
                contiguous, or a step is above 2**32 - 1.
        """
        self._native.import_rows(rows.keys, rows.weights, rows.state, rows.num_pushes, rows.steps)


class Frozen:
    """The rows of a table as they were when it was frozen.

    Holds memory until it is released, at the latest by the garbage collector.
    A context manager that releases. May be used from any thread.

    Attributes:
        num_rows: Rows there were.
        last_step: The largest step that was pushed or imported, 0 before the first.
    """

    _rows: Rows | None = None

    def __init__(self, table: Table) -> None:
        if table._is_frozen:
            raise RuntimeError(
                f"table {table.spec.name!r} is frozen already; release what is held of it first"
            )
        self.last_step = table.last_step
        self._rows = table.export_rows(0, NUM_BUCKETS)
        self.num_rows = len(self._rows)
        self._buckets = _native.bucket_of(self._rows.keys)
        self._table = table
        table._is_frozen = True

    def export_rows(self, first_bucket: int, end_bucket: int) -> Rows:
        """Returns a copy of the rows of buckets `[first_bucket, end_bucket)`.

        Returns:
            Rows in the order of their keys, as of the moment of the freeze.

        Raises:
            ValueError: Not `0 <= first_bucket <= end_bucket <= NUM_BUCKETS`.
            RuntimeError: The frozen state was released.
        """
        if self._rows is None:
            raise RuntimeError("the frozen state was released; freeze the table again")
        if not 0 <= first_bucket <= end_bucket <= NUM_BUCKETS:
            raise ValueError(
                f"buckets are a range within [0, {NUM_BUCKETS}), got {first_bucket=}, {end_bucket=}"
            )
        chosen = (self._buckets >= first_bucket) & (self._buckets < end_bucket)
        return Rows(*(column[chosen] for column in vars(self._rows).values()))

    def release(self) -> None:
        """Lets the rows go; of a state that was released already, does nothing."""
        if self._rows is not None:
            self._rows = None
            self._table._is_frozen = False

    def __enter__(self) -> "Frozen":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()
