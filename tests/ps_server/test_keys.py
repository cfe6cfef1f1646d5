"""Hashes against the `xxhash` package, dedup against `np.unique`."""

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ps_server.keys import (
    KEY_HASH,
    KeyIndex,
    bucket_of,
    crc32c,
    dedup,
    hash_integers,
    hash_text,
    slot_seed,
)
from ps_server.spec import NUM_BUCKETS
from tests.oracles import dict_table

TEXTS = st.lists(st.text(max_size=80), max_size=20)
SEEDS = st.integers(0, 2**64 - 1)
ONE_OWNER = np.zeros(NUM_BUCKETS, np.uint16)


def owners_of(num_servers):
    return (np.arange(NUM_BUCKETS) * num_servers // NUM_BUCKETS).astype(np.uint16)


def columns_of(texts, offset_type=np.int32, padding=b""):
    """Returns offsets and data of an Arrow string array that starts inside its buffer."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(padding), *map(len, encoded)])
    return ends.astype(offset_type), np.frombuffer(padding + b"".join(encoded), np.uint8)


# Hashes


def test_name_of_the_hash_is_what_is_stored_with_models():
    assert KEY_HASH == "xxh64-slot-v1"


def test_key_of_a_value_is_xxh64_seeded_by_the_slot():
    offsets, data = columns_of(["Zürich"])
    seed = xxhash.xxh64_intdigest(b"city", 0)
    assert slot_seed("city") == seed
    assert hash_text(offsets, data, seed).tolist() == [
        xxhash.xxh64_intdigest("Zürich".encode(), seed)
    ]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_texts_of_every_length_hash_as_xxhash_does(seed):
    # 0 to 3 bytes, 4, 8 and 32 are where the algorithm changes its way.
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 256, length).astype(np.uint8).tobytes() for length in range(200)]
    offsets = np.cumsum([0, *map(len, texts)])
    keys = hash_text(offsets, np.frombuffer(b"".join(texts), np.uint8), seed)
    assert keys.tolist() == [xxhash.xxh64_intdigest(text, seed) for text in texts]


@given(TEXTS, SEEDS, st.sampled_from([np.int32, np.int64]), st.binary(max_size=5))
def test_any_texts_hash_as_xxhash_does(texts, seed, offset_type, padding):
    offsets, data = columns_of(texts, offset_type, padding)
    expected = [xxhash.xxh64_intdigest(text.encode(), seed) for text in texts]
    assert hash_text(offsets, data, seed).tolist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), SEEDS)
def test_integers_hash_as_their_decimal_text(values, seed):
    offsets, data = columns_of([str(value) for value in values])
    keys = hash_integers(np.array(values, np.int64), seed)
    assert np.array_equal(keys, hash_text(offsets, data, seed))


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), SEEDS)
def test_unsigned_integers_hash_as_their_decimal_text(values, seed):
    offsets, data = columns_of([str(value) for value in values])
    keys = hash_integers(np.array(values, np.uint64), seed)
    assert np.array_equal(keys, hash_text(offsets, data, seed))


def test_extreme_integers_hash_as_their_decimal_text():
    signed, unsigned = [-(2**63), -1, 0, 9, 10, 2**63 - 1], [0, 2**63, 2**64 - 1]
    for values, dtype in [(signed, np.int64), (unsigned, np.uint64)]:
        keys = hash_integers(np.array(values, dtype), 5)
        assert keys.tolist() == [xxhash.xxh64_intdigest(str(value).encode(), 5) for value in values]


@pytest.mark.parametrize("offsets", [[], [-1, 2], [0, 2, 1], [0, 6], [6, 6]], ids=str)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_offsets_that_leave_the_data_are_refused(offsets, dtype):
    with pytest.raises(ValueError, match="offsets"):
        hash_text(np.array(offsets, dtype), np.zeros(5, np.uint8), 0)


def test_arrays_of_another_dtype_are_refused():
    with pytest.raises(ValueError, match="offsets"):
        hash_text(np.zeros(2, np.uint32), np.zeros(5, np.uint8), 0)
    with pytest.raises(ValueError, match="data"):
        hash_text(np.zeros(2, np.int32), np.zeros(5, np.int8), 0)
    with pytest.raises(ValueError, match="values"):
        hash_integers(np.zeros(2, np.int32), 0)
    with pytest.raises(ValueError, match="keys"):
        bucket_of(np.zeros(2, np.int64))


# Buckets


def test_bucket_is_the_top_12_bits_of_the_mixed_key():
    keys = np.array([0, 1, 2**63, 2**64 - 1, *range(10, 500)], np.uint64)
    buckets = bucket_of(keys)
    assert buckets.dtype == np.uint16
    assert buckets.tolist() == [dict_table.bucket_of(key) for key in keys.tolist()]


def test_consecutive_keys_spread_evenly_over_buckets():
    counts = np.bincount(bucket_of(np.arange(NUM_BUCKETS * 100, dtype=np.uint64)))
    assert len(counts) == NUM_BUCKETS
    assert counts.min() > 50
    assert counts.max() < 150


# Dedup


def assert_groups(keys, owners, num_owners):
    found = dedup(keys, owners, num_owners=num_owners)
    assert np.array_equal(found.unique[found.inverse], keys)
    assert np.array_equal(np.sort(found.unique), np.unique(keys))
    owner = owners[bucket_of(found.unique)]
    assert (np.diff(owner.astype(int)) >= 0).all()
    assert found.counts.tolist() == np.bincount(owner, minlength=num_owners).tolist()
    some = found.unique[:500].tolist()
    places = [
        (int(owner[i]), dict_table.stripe_of(key), int(np.flatnonzero(keys == np.uint64(key))[0]))
        for i, key in enumerate(some)
    ]
    assert places == sorted(places)  # by owner, stripe, first occurrence


@given(
    st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 1), max_size=100),
    st.integers(1, 9),
)
def test_dedup_groups_unique_keys_by_owner_and_stripe_in_order_of_first_occurrence(
    keys, num_servers
):
    assert_groups(np.array(keys, np.uint64), owners_of(num_servers), num_servers)


@pytest.mark.parametrize("num_servers", [1, 3, 64])
def test_dedup_of_a_large_batch_agrees_with_unique(num_servers):
    keys = np.random.default_rng(1).zipf(1.3, 50_000).astype(np.uint64)
    assert_groups(keys, owners_of(num_servers), num_servers)


def test_dedup_remembers_nothing_of_the_batches_before():
    """A thread keeps its table: of a batch this large it does not, of smaller ones it does."""
    rng = np.random.default_rng(2)
    for size in [100, 3, 50_000, 0, 1, 2_200_000, 100, 50_000]:
        keys = rng.integers(0, max(size, 1), size).astype(np.uint64)
        found = dedup(keys, ONE_OWNER, num_owners=1)
        assert np.array_equal(np.sort(found.unique), np.unique(keys))
        assert np.array_equal(found.unique[found.inverse], keys)


def test_dedup_counts_owners_that_own_no_key():
    found = dedup(np.array([7, 7], np.uint64), ONE_OWNER, num_owners=3)
    assert found.counts.tolist() == [1, 0, 0]


def test_dedup_of_nothing_is_nothing():
    found = dedup(np.empty(0, np.uint64), ONE_OWNER, num_owners=2)
    assert (len(found.unique), len(found.inverse), found.counts.tolist()) == (0, 0, [0, 0])


def test_dedup_refuses_an_owner_that_is_not_counted():
    with pytest.raises(ValueError, match="num_owners=2"):
        dedup(np.zeros(1, np.uint64), owners_of(3), num_owners=2)
    with pytest.raises(ValueError, match="num_owners=0"):
        dedup(np.zeros(1, np.uint64), ONE_OWNER, num_owners=0)


def test_dedup_refuses_arrays_of_another_shape_or_dtype():
    with pytest.raises(ValueError, match="owners"):
        dedup(np.zeros(1, np.uint64), np.zeros(10, np.uint16), num_owners=1)
    with pytest.raises(ValueError, match="owners"):
        dedup(np.zeros(1, np.uint64), ONE_OWNER.astype(np.int64), num_owners=1)
    with pytest.raises(ValueError, match="keys"):
        dedup(np.zeros(1, np.int64), ONE_OWNER, num_owners=1)


def test_returned_arrays_start_at_a_multiple_of_64_bytes():
    keys = np.arange(3, dtype=np.uint64)
    found = dedup(keys, ONE_OWNER, num_owners=1)
    hashes = hash_integers(np.arange(3), 0)
    text = hash_text(np.zeros(4, np.int32), np.zeros(0, np.uint8), 0)
    for array in [found.unique, found.inverse, found.counts, hashes, text, bucket_of(keys)]:
        assert array.ctypes.data % 64 == 0


# Numbers of keys


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 40), max_size=30)), max_size=20))
def test_keys_are_numbered_as_a_dict_would(batches):
    index, numbers = KeyIndex(), {}
    for insert, batch in batches:
        found = index.find(np.array(batch, np.uint64), insert=insert)
        if insert:
            for key in batch:
                numbers.setdefault(key, len(numbers))
        assert found.tolist() == [numbers.get(key, -1) for key in batch]
        assert found.dtype == np.int64
        assert index.keys().tolist() == list(numbers)
        assert len(index) == len(numbers)


def test_a_hundred_thousand_keys_have_their_numbers():
    keys = np.random.default_rng(0).permutation(np.arange(100_000, dtype=np.uint64) << 40)
    index = KeyIndex()
    assert index.find(keys, insert=True).tolist() == list(range(100_000))
    assert index.find(keys[::-1].copy(), insert=False).tolist() == list(range(100_000))[::-1]
    np.testing.assert_array_equal(index.keys(), keys)


def test_keys_of_another_dtype_are_refused():
    with pytest.raises(ValueError, match="keys is a C-contiguous, aligned array of uint64"):
        KeyIndex().find(np.array([1]), insert=True)


# Checksums


def slow_crc32c(data):
    """A bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.binary(max_size=200), st.integers(0, 200))
def test_crc32c_is_that_of_its_bits_in_one_piece_or_two(data, cut):
    assert crc32c(data) == crc32c(data[cut:], crc32c(data[:cut])) == slow_crc32c(data)


def test_crc32c_takes_all_that_exposes_bytes_of_any_size():
    data = np.random.default_rng(0).integers(0, 256, 20_000, np.uint8)
    whole = crc32c(data)
    for same in (data.tobytes(), bytearray(data), memoryview(data), data.view(np.uint64)):
        assert crc32c(same) == whole
    assert crc32c(data[9_000:], crc32c(data[:9_000])) == whole  # one without, one with the GIL
    assert crc32c(data.reshape(100, 200)) == whole


def test_crc32c_of_what_is_no_contiguous_bytes_is_refused():
    with pytest.raises(TypeError):
        crc32c("text")
    for rows in (np.zeros(4, np.uint8)[::2], memoryview(b"abcd")[::2]):
        with pytest.raises((ValueError, BufferError)):
            crc32c(rows)
    for crc in (-1, 2**32):
        with pytest.raises(TypeError):
            crc32c(b"a", crc)
