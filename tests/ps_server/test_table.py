"""The native table against a dict of arrays, bit for bit unless a test says otherwise.

Any sequence of operations is tested in tests/integration/test_table_machine.py.
"""

import itertools
import threading

import numpy as np
import pytest

from ps_server import _native
from ps_server.spec import NUM_BUCKETS, SGD, Adagrad, Adam, Constant, Normal, TableSpec, Uniform
from ps_server.table import Rows, Table
from tests.oracles.dict_table import DictTable, first_weights

EDGE_KEYS = [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
OPTIMIZERS = [SGD(0.1), Adagrad(0.1), Adagrad(0.3, 1e-3, 0.1), Adam(0.01), Adam(0.1, 0.0, 0.5)]
INITIALIZERS = [Constant(0.25), Uniform(), Uniform(-3.0, 5.0), Normal(), Normal(2.0, 0.5)]
DIMS = [1, 2, 3, 7, 8, 9, 16, 33]


def u64(*keys):
    return np.array(keys, np.uint64)


def spec_of(dim=4, optimizer=Adagrad(0.1), initializer=Uniform(), seed=3, name="t"):  # noqa: B008
    return TableSpec(name, dim, optimizer, initializer, seed)


def gradients_of(rng, num_keys, dim):
    return rng.standard_normal((num_keys, dim)).astype(np.float32)


def native_of(num_stripes, dim=4, seed=3):
    fields = spec_of(dim).to_dict()
    return _native.Table(
        dim=dim,
        optimizer=fields["optimizer"],
        initializer=fields["initializer"],
        seed=seed,
        num_stripes=num_stripes,
    )


def assert_same_rows(table, oracle, first_bucket=0, end_bucket=NUM_BUCKETS):
    rows = table.export_rows(first_bucket, end_bucket)
    expected = oracle.export_rows(first_bucket, end_bucket)
    assert rows.keys.tolist() == [key for key, _ in expected]
    for i, (_, row) in enumerate(expected):
        assert np.array_equal(rows.weights[i], row.weights)
        assert np.array_equal(rows.state[i], row.state.ravel())
        assert rows.num_pushes[i] == row.num_pushes
        assert rows.steps[i] == row.step


def assert_equal_columns(left, right):
    for name, column in vars(left).items():
        assert column.dtype == getattr(right, name).dtype
        assert np.array_equal(column, getattr(right, name)), name


# What a row starts as


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("initializer", INITIALIZERS, ids=repr)
def test_new_row_starts_as_the_function_of_seed_and_key(initializer, dim):
    spec = spec_of(dim, initializer=initializer)
    keys = u64(*EDGE_KEYS, *range(100, 200))
    pulled = Table(spec).pull(keys)
    expected = np.array([first_weights(spec, key) for key in keys.tolist()])
    if isinstance(initializer, Normal):
        # The native table has a logarithm and cosine of its own, so that servers of
        # different libm agree; they round as libm's do but for the last bit.
        spread = np.float32(abs(initializer.mean) + initializer.std)
        np.testing.assert_allclose(pulled, expected, rtol=2e-7, atol=np.spacing(spread))
    else:
        assert np.array_equal(pulled, expected)


def test_first_weights_depend_neither_on_order_nor_on_number_of_stripes():
    keys = np.random.default_rng(0).integers(0, 2**64, 5000, np.uint64)
    expected = native_of(64).pull(keys, True)
    for num_stripes, order in itertools.product([1, 2, 1024], [slice(None), slice(None, None, -1)]):
        table = native_of(num_stripes)
        shuffled = np.ascontiguousarray(keys[order])
        assert np.array_equal(table.pull(shuffled, True), expected[order])


def test_first_weights_differ_by_seed_and_by_table_name():
    keys = u64(*range(100))
    start = Table(spec_of()).pull(keys)
    assert not np.isin(start, Table(spec_of(seed=4)).pull(keys)).any()
    assert not np.isin(start, Table(spec_of(name="u")).pull(keys)).any()


def test_uniform_weights_fill_their_range_evenly_and_stay_below_its_end():
    weights = Table(spec_of(16, initializer=Uniform(-1.0, 1.0))).pull(np.arange(20_000, dtype="u8"))
    counts, _ = np.histogram(weights, bins=16, range=(-1, 1))
    assert np.abs(counts / 20_000 - 1).max() < 0.03
    assert weights.min() >= -1
    assert weights.max() < 1
    # One float32 in the range: rounding would reach the end, 1 + 2^-23, half of the time.
    narrow = Uniform(1.0, 1.0 + 2.0**-23)
    assert (Table(spec_of(initializer=narrow)).pull(u64(*range(50))) == 1).all()


def test_normal_weights_have_the_moments_of_a_normal():
    weights = Table(spec_of(16, initializer=Normal(3.0, 0.5))).pull(np.arange(50_000, dtype="u8"))
    z = (weights.astype(np.float64) - 3.0) / 0.5
    assert abs(z.mean()) < 0.005
    assert abs(z.std() - 1) < 0.005
    assert abs((z**3).mean()) < 0.02
    assert abs((z**4).mean() - 3) < 0.05
    assert np.abs(np.corrcoef(z.T) - np.eye(16)).max() < 0.03


# Pull


def test_pull_without_insert_returns_first_weights_and_makes_no_row():
    table = Table(spec_of())
    start = table.pull(u64(1, 2, 1), insert=False)
    assert table.num_rows == 0
    assert np.array_equal(start, table.pull(u64(1, 2, 1)))
    assert table.num_rows == 2


def test_pull_writes_to_out_and_returns_it():
    table, out = Table(spec_of()), np.empty((2, 4), np.float32)
    assert table.pull(u64(1, 2), out=out) is out
    assert np.array_equal(out, table.pull(u64(1, 2)))


# Push


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_optimizers_move_rows_as_the_formula_in_float32(optimizer, dim):
    rng = np.random.default_rng(2)
    spec = spec_of(dim, optimizer)
    table, oracle = Table(spec), DictTable(spec)
    for step in [1, 2, 3, 5, 1000, 4]:
        keys = rng.permutation(60)[:40].astype(np.uint64)
        gradients = gradients_of(rng, 40, dim)
        for each in (table, oracle):
            each.push(keys, gradients, step=step)
    assert_same_rows(table, oracle)
    assert table.last_step == oracle.last_step == 1000


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_gradients_of_equal_keys_are_summed_and_applied_once(optimizer):
    rng = np.random.default_rng(3)
    spec = spec_of(5, optimizer)
    table, oracle = Table(spec), DictTable(spec)
    for step in (1, 2):
        keys = rng.integers(0, 50, 700).astype(np.uint64)
        gradients = gradients_of(rng, 700, 5)
        for each in (table, oracle):
            each.push(keys, gradients, step=step)
    assert_same_rows(table, oracle)
    assert table.export_rows(0, NUM_BUCKETS).num_pushes.max() == 2


def test_row_keeps_the_largest_step_that_touched_it():
    table = Table(spec_of())
    gradient = np.ones((1, 4), np.float32)
    for step in (7, 9, 8):
        table.push(u64(1), gradient, step=step)
    table.push(u64(2), gradient, step=1)
    rows = table.export_rows(0, NUM_BUCKETS)
    assert rows.steps.tolist() == [9, 1]
    assert rows.num_pushes.tolist() == [3, 1]
    assert table.last_step == 9


# Growth and memory


@pytest.mark.parametrize("num_stripes", [1, 64])
def test_rows_survive_growth(num_stripes):
    # One stripe of 60,000 rows splits its index and its slabs many times.
    rng = np.random.default_rng(4)
    keys = rng.permutation(60_000).astype(np.uint64) * np.uint64(2**40 + 1)
    table = native_of(num_stripes)
    first = table.pull(keys, False)
    for start in range(0, len(keys), 7_000):
        table.pull(keys[start : start + 7_000], True)
        assert np.array_equal(table.pull(keys, False), first)
    assert table.num_rows() == 60_000
    keys_there, weights, *_ = table.export_rows(0, NUM_BUCKETS)
    order = np.argsort(keys)
    assert np.array_equal(keys_there, keys[order])
    assert np.array_equal(weights, first[order])


def test_one_bucket_of_keys_fills_the_stripes_evenly():
    # A server of many owns few buckets: the bits of the bucket choose nothing else.
    keys = np.arange(2_000_000, dtype=np.uint64)
    keys = keys[_native.bucket_of(keys) < 40]
    wide, narrow = native_of(64), native_of(64)
    wide.pull(np.arange(len(keys), dtype=np.uint64), True)
    narrow.pull(keys, True)
    assert narrow.memory_bytes() < 1.2 * wide.memory_bytes()


def test_empty_table_is_small_and_a_large_one_adds_little_to_its_rows():
    table = Table(spec_of(16))
    assert table.memory_bytes < 100_000
    table.pull(np.arange(300_000, dtype=np.uint64))
    payload = 300_000 * 16 * 4 * 2
    assert payload < table.memory_bytes < 1.6 * payload


def test_cleared_table_is_as_new():
    table, keys = Table(spec_of()), np.arange(30_000, dtype=np.uint64)
    before, start = table.memory_bytes, table.pull(keys)
    table.push(keys, np.ones((30_000, 4), np.float32), step=5)
    table.clear()
    assert (table.num_rows, table.last_step, table.memory_bytes) == (0, 0, before)
    assert np.array_equal(table.pull(keys), start)


# Export and import


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_imported_rows_train_on_as_those_exported(optimizer):
    rng = np.random.default_rng(5)
    spec = spec_of(6, optimizer)
    trained, keys = Table(spec), np.arange(3_000, dtype=np.uint64)
    for step in (1, 2, 3):
        trained.push(keys, gradients_of(rng, 3_000, 6), step=step)
    rows = trained.export_rows(0, NUM_BUCKETS)
    loaded = Table(spec)
    loaded.import_rows(rows)
    assert loaded.last_step == 3
    gradients = gradients_of(rng, 3_000, 6)
    for table in (trained, loaded):
        table.push(keys, gradients, step=4)
    assert_equal_columns(trained.export_rows(0, NUM_BUCKETS), loaded.export_rows(0, NUM_BUCKETS))


def test_bucket_ranges_split_the_rows():
    rng = np.random.default_rng(6)
    table, oracle = Table(spec_of()), DictTable(spec_of())
    keys = rng.integers(0, 2**64, 2_000, np.uint64)
    for each in (table, oracle):
        each.push(keys, np.ones((2_000, 4), np.float32), step=1)
    cuts = [0, 0, 1, 100, 3000, NUM_BUCKETS]
    for first, end in itertools.pairwise(cuts):
        assert_same_rows(table, oracle, first, end)


def test_export_is_a_function_of_the_content_alone():
    keys = np.random.default_rng(7).permutation(20_000).astype(np.uint64)
    gradients = gradients_of(np.random.default_rng(8), 20_000, 4)
    one, other = Table(spec_of()), Table(spec_of())
    one.push(keys, gradients, step=1)
    for part in reversed(np.array_split(np.arange(20_000), 9)):
        other.push(keys[part], gradients[part], step=1)
    assert_equal_columns(one.export_rows(0, NUM_BUCKETS), other.export_rows(0, NUM_BUCKETS))


def test_import_overwrites_and_the_last_of_equal_keys_stays():
    table = Table(spec_of(2, SGD(0.1)))
    table.push(u64(1, 2), np.ones((2, 2), np.float32), step=9)
    table.import_rows(
        Rows(
            keys=u64(1, 3, 1),
            weights=np.array([[1, 1], [3, 3], [4, 5]], np.float32),
            state=np.empty((3, 0), np.float32),
            num_pushes=np.array([1, 3, 4], np.uint32),
            steps=u64(1, 3, 4),
        )
    )
    rows = table.export_rows(0, NUM_BUCKETS)
    assert rows.keys.tolist() == [1, 2, 3]
    assert rows.weights[[0, 2]].tolist() == [[4, 5], [3, 3]]
    assert rows.num_pushes.tolist() == [4, 1, 3]
    assert rows.steps.tolist() == [4, 9, 3]
    assert table.last_step == 9


# Threads


def run_together(*tasks):
    """Runs the tasks at the same time and raises what they raised."""
    start, errors = threading.Barrier(len(tasks)), []

    def run(task):
        try:
            start.wait(timeout=30)
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_threads_that_insert_overlapping_keys_make_each_row_once():
    table = Table(spec_of())
    keys = np.arange(60_000, dtype=np.uint64)
    parts = [keys[start : start + 30_000] for start in (0, 10_000, 20_000, 30_000)]

    def insert(part):
        for batch in np.array_split(part, 20):
            table.pull(batch)

    run_together(*(lambda part=part: insert(part) for part in parts))
    assert table.num_rows == 60_000
    assert np.array_equal(table.pull(keys), Table(spec_of()).pull(keys))


def test_export_beside_pushes_and_inserts_has_whole_rows_and_all_that_were_there():
    table = Table(spec_of(16, SGD(1.0), Constant(0.0)))
    old = np.arange(5_000, dtype=np.uint64)
    table.pull(old)
    done = threading.Event()

    def train():
        for step in range(1, 61):
            new = np.arange(5_000 + 1_000 * step, 6_000 + 1_000 * step, dtype=np.uint64)
            keys = np.concatenate([old, new])
            table.push(keys, np.ones((len(keys), 16), np.float32), step=step)
        done.set()

    def export():
        while not done.is_set():
            rows = table.export_rows(0, NUM_BUCKETS)
            assert np.isin(old, rows.keys).all()
            assert (np.diff(rows.keys) > 0).all()
            assert (rows.weights == -rows.num_pushes[:, None].astype(np.float32)).all()
            assert table.num_rows >= len(rows)
            assert table.memory_bytes > 0

    run_together(train, export, export)


def test_clear_beside_pulls_and_exports_leaves_a_sound_table():
    table, keys = Table(spec_of()), np.arange(2_000, dtype=np.uint64)
    start = table.pull(keys)

    def pull():
        for _ in range(100):
            assert np.array_equal(table.pull(keys), start)

    def clear():
        for _ in range(100):
            table.clear()

    def export():
        for _ in range(30):
            try:
                table.export_rows(0, NUM_BUCKETS)
            except RuntimeError as error:
                assert "cleared" in str(error)  # noqa: PT017

    run_together(pull, pull, clear, export)
    assert np.array_equal(table.pull(keys), start)


# Arrays


@pytest.mark.parametrize("num_keys", [0, 1, 3, 1000])
def test_returned_arrays_start_at_a_multiple_of_64_bytes(num_keys):
    table = Table(spec_of(5, Adam()))
    pulled = table.pull(np.arange(num_keys, dtype=np.uint64))
    rows = table.export_rows(0, NUM_BUCKETS)
    for array in [pulled, *vars(rows).values()]:
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
        assert array.flags.writeable


def misaligned(dtype, shape):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.zeros(size + 1, np.uint8)[1:].view(dtype).reshape(shape)


BAD_KEYS = {
    "dtype": np.zeros(2, np.int64),
    "byte order": np.zeros(2, ">u8"),
    "two dimensions": np.zeros((2, 1), np.uint64),
    "no dimension": np.array(0, np.uint64),
    "not contiguous": np.zeros(4, np.uint64)[::2],
    "misaligned": misaligned(np.uint64, 2),
}
BAD_GRADIENTS = {
    "dtype": np.zeros((2, 4)),
    "dim": np.zeros((2, 5), np.float32),
    "number": np.zeros((3, 4), np.float32),
    "one dimension": np.zeros(8, np.float32),
    "order": np.zeros((2, 4), np.float32, order="F"),
    "misaligned": misaligned(np.float32, (2, 4)),
}


@pytest.mark.parametrize("keys", BAD_KEYS.values(), ids=BAD_KEYS)
def test_bad_keys_are_refused(keys):
    table = Table(spec_of())
    with pytest.raises(ValueError, match="keys is a C-contiguous, aligned array of uint64"):
        table.pull(keys)
    with pytest.raises(ValueError, match="keys"):
        table.push(keys, np.zeros((2, 4), np.float32), step=1)
    assert table.num_rows == 0


@pytest.mark.parametrize("array", BAD_GRADIENTS.values(), ids=BAD_GRADIENTS)
def test_bad_gradients_and_bad_out_are_refused(array):
    table = Table(spec_of())
    with pytest.raises(ValueError, match="gradients is a C-contiguous, aligned array of float32"):
        table.push(u64(1, 2), array, step=1)
    with pytest.raises(ValueError, match="out is"):
        table.pull(u64(1, 2), out=array)
    assert table.num_rows == 0


def test_read_only_out_is_refused_and_read_only_input_is_not():
    table, out = Table(spec_of()), np.zeros((1, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        table.pull(u64(1), out=out)
    table.push(u64(1), out, step=1)


@pytest.mark.parametrize("step", [-1, 0, 2**32])
def test_step_out_of_range_is_refused(step):
    table = Table(spec_of())
    with pytest.raises(ValueError, match=f"step={step}"):
        table.push(u64(1), np.zeros((1, 4), np.float32), step=step)
    assert (table.num_rows, table.last_step) == (0, 0)


@pytest.mark.parametrize("buckets", [(-1, 3), (2, 1), (0, NUM_BUCKETS + 1)])
def test_bad_bucket_range_is_refused(buckets):
    with pytest.raises(ValueError, match="buckets"):
        Table(spec_of()).export_rows(*buckets)


@pytest.mark.parametrize("column", ["keys", "weights", "state", "num_pushes", "steps"])
def test_import_of_a_column_of_another_length_or_dtype_is_refused(column):
    table = Table(spec_of())
    columns = vars(Table(spec_of()).export_rows(0, 0)) | {"keys": u64(1)}
    good = {name: np.zeros((1, *array.shape[1:]), array.dtype) for name, array in columns.items()}
    table.import_rows(Rows(**good))
    for bad in (np.repeat(good[column], 2, axis=0), good[column].astype(np.int16)):
        with pytest.raises(ValueError, match="C-contiguous"):
            table.import_rows(Rows(**good | {column: bad}))
    with pytest.raises(ValueError, match="step"):
        table.import_rows(Rows(**good | {"steps": u64(2**32)}))


@pytest.mark.parametrize("num_stripes", [0, 3, 2048])
def test_bad_number_of_stripes_is_refused(num_stripes):
    with pytest.raises(ValueError, match="num_stripes is a power of two"):
        native_of(num_stripes)


def test_settings_that_float32_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="learning_rate"):
        Table(spec_of(optimizer=SGD(1e39)))
    with pytest.raises(ValueError, match="beta2"):
        Table(spec_of(optimizer=Adam(beta2=1 - 1e-12)))


# Frozen states


def test_frozen_rows_stay_while_the_table_goes_on():
    table, keys = Table(spec_of()), np.arange(1_000, dtype=np.uint64)
    table.push(keys, np.ones((1_000, 4), np.float32), step=3)
    before = table.export_rows(0, NUM_BUCKETS)
    with table.freeze() as frozen:
        table.push(keys[::2].copy(), np.ones((500, 4), np.float32), step=4)
        table.pull(keys + np.uint64(5_000))
        assert (frozen.num_rows, frozen.last_step) == (1_000, 3)
        assert_equal_columns(frozen.export_rows(0, NUM_BUCKETS), before)


def test_released_state_is_read_no_more_and_the_table_copies_no_more():
    table, keys = Table(spec_of()), np.arange(9, dtype=np.uint64)
    table.pull(keys)
    with table.freeze() as frozen, table.freeze() as other:
        before = frozen.memory_bytes
        table.push(keys, np.ones((9, 4), np.float32), step=1)
        assert frozen.memory_bytes > before
        frozen.release()
        frozen.release()
        with pytest.raises(RuntimeError, match="released"):
            frozen.export_rows(0, 1)
        table.clear()
        assert other.export_rows(0, NUM_BUCKETS).num_pushes.tolist() == [0] * 9


def test_released_buckets_are_refused_and_the_others_stay():
    table, keys = Table(spec_of()), np.arange(1_000, dtype=np.uint64)
    table.push(keys, np.ones((1_000, 4), np.float32), step=1)
    before = table.export_rows(2_000, NUM_BUCKETS)
    with table.freeze() as frozen:
        frozen.release_buckets(2_000)
        table.push(keys, np.ones((1_000, 4), np.float32), step=2)
        assert_equal_columns(frozen.export_rows(2_000, NUM_BUCKETS), before)
        with pytest.raises(ValueError, match="buckets below 2000 are, got first_bucket=1999"):
            frozen.export_rows(1_999, 2_001)
        with pytest.raises(ValueError, match="end_bucket=5000"):
            frozen.release_buckets(5_000)
    with pytest.raises(RuntimeError, match="released"):
        frozen.release_buckets(1)


def test_dropped_buckets_are_gone_and_the_others_stay():
    table, oracle = Table(spec_of()), DictTable(spec_of())
    keys = np.random.default_rng(9).integers(0, 2**64, 3_000, np.uint64)
    for each in (table, oracle):
        each.push(keys, np.ones((3_000, 4), np.float32), step=1)
        each.drop_buckets(100, 3_000)
        each.push(keys[:500], np.ones((500, 4), np.float32), step=2)
    assert_same_rows(table, oracle)
    assert (table.num_rows, table.last_step) == (oracle.num_rows, 2)
    with pytest.raises(ValueError, match="buckets"):
        table.drop_buckets(2, 1)
