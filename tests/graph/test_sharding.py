"""Sharding: what may split, against Paddle's dims_mapping rules spelt out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.errors import PlanError
from hetero_pipe.graph import BATCH, Partial, Replicate, Shard, Sharding, Size, Tensor, product

AXES = {"data": 2, "model": 4}

placements = st.one_of(
    st.integers(-1, 3).map(Shard),
    st.just(Replicate()),
    st.sampled_from(["sum", "max"]).map(Partial),
)
shapes = st.lists(st.integers(1, 12), max_size=3)
meshes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def is_valid(mesh, wanted, shape, is_parameter):
    """The rules, one device count at a time."""
    mapping = [-1] * len(shape)
    for axis, placement in enumerate(wanted):
        if isinstance(placement, Partial) and is_parameter:
            return False
        if not isinstance(placement, Shard):
            continue
        if not 0 <= placement.dim < len(shape) or mapping[placement.dim] != -1:
            return False
        mapping[placement.dim] = axis
    return all(m == -1 or size % mesh[m] == 0 for size, m in zip(shape, mapping, strict=True))


@given(st.data())
def test_a_sharding_is_accepted_just_where_the_rules_hold(data):
    mesh, shape = data.draw(meshes), data.draw(shapes)
    wanted = tuple(data.draw(placements) for _ in mesh)
    is_parameter = data.draw(st.booleans())
    tensor = Tensor("t", tuple(map(Size.of, shape)), is_parameter=is_parameter)
    axes = {f"axis{i}": size for i, size in enumerate(mesh)}
    try:
        sharding = Sharding(axes, wanted)
        local = sharding.local_shape(tensor)
    except PlanError:
        assert not is_valid(mesh, wanted, shape, is_parameter)
        return
    assert is_valid(mesh, wanted, shape, is_parameter)
    # The parts make up the whole.
    parts = 1
    for placement, size in zip(wanted, mesh, strict=True):
        parts *= size if isinstance(placement, Shard) else 1
    assert product(local) * parts == tensor.numel
    mapping = sharding.dims_mapping(len(shape))
    assert [
        size if m == -1 else size // mesh[m] for size, m in zip(shape, mapping, strict=True)
    ] == [part.at({}) for part in local]


def test_a_batch_may_split_and_does_where_it_divides():
    tensor = Tensor("t", (BATCH, Size.of(8)))
    sharding = Sharding(AXES, (Shard(0), Shard(1)))
    assert sharding.local_shape(tensor) == (BATCH.divided(2), Size.of(2))
    assert sharding.dims_mapping(2) == (0, 1)
    sharding.check(tensor, {"batch": 6})
    with pytest.raises(PlanError, match="axis 'data' splits a dim into 2 equal parts, got 7"):
        sharding.check(tensor, {"batch": 7})


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ((Shard(1), Shard(1)), "a dim is at least 0 and splits over one axis"),
        ((Shard(2), Replicate()), "axis 'data' splits a dim of t .* got dim=2; it has 2"),
        ((Replicate(), Shard(1)), "axis 'model' splits a dim into 4 equal parts, got 6 in dim 1"),
        ((Partial(), Replicate()), "a parameter is whole or split"),
        ((Replicate(),), "a placement for each axis of .* got 1"),
    ],
)
def test_a_sharding_that_cannot_be_is_refused(wanted, said):
    tensor = Tensor("t", (Size.of(8), Size.of(6)), is_parameter=True)
    with pytest.raises(PlanError, match=said):
        Sharding(AXES, wanted).check(tensor)


def test_a_replicated_tensor_is_whole_everywhere():
    tensor = Tensor("t", (BATCH, Size.of(5)))
    sharding = Sharding.replicated(AXES)
    assert sharding.local_shape(tensor) == tensor.shape
    assert not sharding.is_partial
    assert sharding.dims_mapping(2) == (-1, -1)


def test_a_reduction_has_a_known_name():
    with pytest.raises(PlanError, match="one of sum, mean, max, min, got 'product'"):
        Partial("product")
