"""Specs: what a table can be, to and from JSON."""

import json
from dataclasses import FrozenInstanceError

import pytest

from ps_server.spec import SGD, Adagrad, Adam, Constant, Normal, TableSpec, Uniform

NAN, INFINITY = float("nan"), float("inf")

SPECS = [
    TableSpec("user", 8),
    TableSpec("tower.item_id-2", 1, SGD(1e-3), Constant(-2.0), seed=2**64 - 1),
    TableSpec("0", 4096, Adagrad(0.1, 1e-3, 0.5), Normal(1.0, 0.1)),
    TableSpec("A", 16, Adam(0.1, 0.0, 0.5, 1e-4), Uniform(-3, 5), seed=7),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_json_gives_the_spec_back(spec):
    assert TableSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../x", "a b", "a\n", "é", "名", "a:b", "-", "²"]
)
def test_name_that_could_be_no_file_is_refused(name):
    with pytest.raises(ValueError, match=r"name is letters, digits, '_', '-' and '.'"):
        TableSpec(name, 4)


@pytest.mark.parametrize("dim", [0, -1, 4097, 5000])
def test_dim_out_of_range_is_refused(dim):
    with pytest.raises(ValueError, match=f"dim from 1 to 4096, got dim={dim}"):
        TableSpec("user", dim)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match=f"unsigned 64-bit number, got seed={seed}"):
        TableSpec("user", 4, seed=seed)


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        *(
            (kind, {"learning_rate": rate}, "learning_rate")
            for kind in (SGD, Adagrad, Adam)
            for rate in (0, -1, NAN, INFINITY)
        ),
        *(
            (kind, {"learning_rate": 1, "epsilon": epsilon}, "epsilon")
            for kind in (Adagrad, Adam)
            for epsilon in (0, -1, NAN, INFINITY)
        ),
        *(
            (Adagrad, {"learning_rate": 1, "initial_accumulator": a}, "initial_accumulator")
            for a in (-1, NAN, INFINITY)
        ),
        *(
            (Adam, {beta: value}, beta)
            for beta in ("beta1", "beta2")
            for value in (-0.1, 1, 2, NAN)
        ),
        *((Constant, {"value": value}, "value") for value in (NAN, INFINITY)),
        *(
            (Uniform, {"low": low, "high": high}, "low=")
            for low, high in ((1, 1), (2, 1), (NAN, 1), (0, INFINITY))
        ),
        (Normal, {"mean": NAN}, "mean"),
        *((Normal, {"std": std}, "std") for std in (0, -1, NAN, INFINITY)),
    ],
)
def test_setting_out_of_range_is_named(kind, settings, named):
    with pytest.raises(ValueError, match=f"{kind.__name__} needs .*, got .*{named}"):
        kind(**settings)


def test_specs_are_frozen():
    with pytest.raises(FrozenInstanceError):
        SPECS[0].dim = 9


@pytest.mark.parametrize(
    "change",
    [
        {"dim": None},
        {"dim": "8"},
        {"dim": []},
        {"name": 8},
        {"optimizer": None},
        {"optimizer": []},
        {"optimizer": "sgd"},
        {"optimizer": {}},
        {"optimizer": {"kind": "lion", "learning_rate": 1}},
        {"optimizer": {"kind": "sgd"}},
        {"optimizer": {"kind": "sgd", "learning_rate": "fast"}},
        {"optimizer": {"kind": "sgd", "learning_rate": 1, "momentum": 0.9}},
        {"initializer": {"kind": "sgd", "learning_rate": 1}},
        {"seed": -1},
        {"seed": "x"},
    ],
    ids=str,
)
def test_json_that_is_no_spec_is_refused(change):
    with pytest.raises(ValueError, match="got"):
        TableSpec.from_dict({**SPECS[0].to_dict(), **change})


@pytest.mark.parametrize("fields", [{}, [], None, "spec", 3, {"name": "user"}], ids=repr)
def test_what_is_no_object_is_refused(fields):
    with pytest.raises(ValueError, match="not a table spec"):
        TableSpec.from_dict(fields)


def test_state_per_weight_is_that_of_the_rows():
    assert [SGD(1).state_per_weight, Adagrad(1).state_per_weight, Adam().state_per_weight] == [
        0,
        1,
        2,
    ]
