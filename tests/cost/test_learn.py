"""What runs show of a cost model: planted errors are found, and nothing else is."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.cluster import Cluster, Device, Host, Link, Rate, Spread, Switch
from hetero_pipe.cost import Constants, Correction, Corrections, CostModel, StagePlace, learn
from tests.cost.measuring import as_predicted, with_stage
from tests.cost.problems import plan, servers, workers, workload
from tests.cost.test_model import clusters, plans

HERE = Cluster((Host("here", (Device("cpu", memory=10**12, cores=2),)),))
ALONE = plan(workers(host="here"))
SERVED = plan(servers("here"), workers(host="here"))
SPLIT = plan(servers("here"), workers("sparse", host="here"), workers("dense", host="here"))
RATES = ("core_flops", "core_bandwidth", "launch", "read_value", "route_key", "pull_row")
RATES += ("push_row", "call", "call_cpu", "message_byte", "step")


def model_of(cluster=HERE, **wrong):
    """Returns a model in which constants are so many times what they are by themselves."""
    right = Constants()
    return CostModel(
        cluster,
        workload(),
        replace(right, **{name: getattr(right, name) * by for name, by in wrong.items()}),
    )


def place(stage, *, peer="", role="whole"):
    return StagePlace(stage, role, "here", "cpu", peer)


@pytest.mark.parametrize(
    ("wrong", "chosen"),
    [
        *((each, ALONE) for each in RATES),
        # What a server took and what was waited for it are not told apart; but for these:
        *((each, SERVED) for each in RATES if each not in ("call", "call_cpu")),
    ],
)
@pytest.mark.parametrize("by", [0.5, 2.0])
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_rate_that_is_wrong_by_two_is_made_up_for_by_one_run(wrong, by, chosen, staleness):
    chosen = replace(chosen, staleness=staleness)
    true, model = model_of().predict(chosen), model_of(**{wrong: by})
    better = model.corrected(learn(model, chosen, as_predicted(true, chosen)))
    found = better.predict(chosen)
    assert found.step_seconds == pytest.approx(true.step_seconds, rel=0.01)
    for stage, its in zip(found.stages, true.stages, strict=True):
        # What holds a core of the server and what is waited for is not told apart, so others
        # wait a little more, or less, for cores.
        assert stage.busy == pytest.approx(its.busy, rel=0.05)
        assert stage.cost.total == pytest.approx(sum(p.amount for p in stage.cost.parts))


def test_the_error_that_is_made_up_for_was_one():
    true = model_of().predict(ALONE).step_seconds
    assert model_of(core_bandwidth=0.5).predict(ALONE).step_seconds > 1.3 * true


def test_the_same_run_again_and_again_shows_the_same():
    true, model = model_of().predict(SERVED), model_of(pull_row=4.0, core_flops=0.25)
    first = learn(model, SERVED, as_predicted(true, SERVED))
    for runs in (2, 3, 4):
        model = model.corrected(learn(model, SERVED, as_predicted(true, SERVED)))
        model = model.corrected(learn(model, SERVED, as_predicted(true, SERVED)))
        for one, other in zip(first.found, model.corrections.found, strict=True):
            assert other.place == one.place
            assert other.runs == 2 * (runs - 1)
            assert (other.core, other.rest) == pytest.approx((one.core, one.rest), rel=5e-3)


def test_runs_that_differ_do_not_swing_it():
    model = model_of()
    predicted = as_predicted(model.predict(ALONE), ALONE)
    found = []
    for factor in itertools.islice(itertools.cycle([1.5, 1 / 1.5]), 20):
        seconds = factor * predicted.stages[3].cpu
        measured = with_stage(predicted, "dense", busy=seconds, cpu=seconds)
        model = model.corrected(learn(model, ALONE, measured))
        found.append(model.corrections.of(place("dense")).core)
    # With a third for the newest, the two ends of the swing are 1.5 ** (1 / 5) to each side.
    assert found[0] == pytest.approx(1.5)
    assert found[-2:] == pytest.approx([1.5**0.2, 1.5**-0.2], rel=1e-3)


def test_a_machine_that_has_changed_is_followed():
    model = model_of()
    predicted = as_predicted(model.predict(ALONE), ALONE)
    for _ in range(30):
        model = model.corrected(learn(model, ALONE, predicted))
    seconds = 3 * predicted.stages[3].cpu
    slower = with_stage(predicted, "dense", busy=seconds, cpu=seconds)
    for _ in range(12):
        model = model.corrected(learn(model, ALONE, slower))
    assert model.corrections.of(place("dense")).core == pytest.approx(3.0, rel=0.01)
    assert model.corrections.of(place("push")).core == pytest.approx(1.0)


@st.composite
def corrections(draw):
    """Factors of stages of any plan of `plans`, which are of any basis yet."""
    factors = st.sampled_from([0.25, 0.5, 1.0, 1.5, 4.0])
    found = [
        Correction(StagePlace(stage, role, host, device, peer), draw(factors), draw(factors), 3)
        for stage in ("read", "route", "pull", "send", "dense", "recv", "push")
        for role, device in (
            ("whole", "cpu"),
            ("whole", "gpu"),
            ("sparse", "cpu"),
            ("dense", "gpu"),
        )
        for host in ("server", "trainer")
        for peer in ("", "server", "trainer")
    ]
    return Corrections(found=tuple(found))


@given(clusters(), plans(), corrections())
@settings(max_examples=30, deadline=None)
def test_what_was_predicted_changes_nothing(cluster, chosen, known):
    model = CostModel(cluster, workload())
    model = model.corrected(replace(known, basis=model.applied.basis))
    prediction = model.predict(chosen)
    learned = learn(model, chosen, as_predicted(prediction, chosen))
    again = model.corrected(learned).predict(chosen)
    for stage, before in zip(again.stages, prediction.stages, strict=True):
        assert stage.busy == pytest.approx(before.busy)
        assert stage.cost.total == pytest.approx(before.cost.total)


@given(clusters(), plans(), corrections())
@settings(max_examples=30, deadline=None)
def test_corrected_stages_add_up_and_bound_the_step(cluster, chosen, known):
    model = CostModel(cluster, workload())
    plain = model.predict(chosen)
    found = model.corrected(replace(known, basis=model.applied.basis)).predict(chosen)
    assert found.step_seconds == found.bounds[0].amount == max(b.amount for b in found.bounds)
    workers = chosen.workers
    at_work = min(workers.num_dense, workers.num_readers + chosen.staleness)
    if workers.mode == "async":
        at_work = workers.num_dense
    per_dense = workers.num_readers / at_work
    bounds = {bound.label: bound.amount for bound in found.bounds}
    for stage, before in zip(found.stages, plain.stages, strict=True):
        times = per_dense if stage.role == "dense" else 1
        assert bounds[stage.name] == pytest.approx(stage.cost.total * times)
        assert 0.25 - 1e-9 <= stage.cost.total / before.cost.total <= 4 + 1e-9
    assert found.memory == plain.memory
    assert found.price_per_hour == plain.price_per_hour


def test_seconds_on_a_core_and_other_ones_are_corrected_apart():
    model = model_of()
    pull = model.predict(SERVED).stage("pull")
    waits = pull.cost.total - pull.cpu
    measured = as_predicted(model.predict(SERVED), SERVED)
    measured = with_stage(measured, "pull", busy=3 * pull.cpu + 2 * waits, cpu=3 * pull.cpu)
    learned = learn(model, SERVED, measured)
    found = learned.of(place("pull", peer="here"))
    assert found.core == pytest.approx(3.0)
    assert 1.0 < found.rest < 2.0  # some of it is a wait for a core
    corrected = model.corrected(learned).predict(SERVED).stage("pull")
    assert corrected.busy == pytest.approx(3 * pull.cpu + 2 * waits, rel=0.01)


def test_where_both_cannot_be_told_apart_the_whole_is_corrected():
    gpu = Device("gpu", memory=10**12, flops=(("float32", 1e10),))
    devices = (*HERE.hosts[0].devices, gpu)
    cluster = Cluster((Host("here", devices, (Link(("gpu", "cpu"), "PCIe", 1e10, 0.0),)),))
    chosen = plan(workers(host="here", device="gpu"), device="gpu:0")
    model = model_of(cluster)
    dense = model.predict(chosen).stage("dense")
    assert dense.cpu < dense.cost.total / 5
    measured = as_predicted(model.predict(chosen), chosen)
    spun = with_stage(measured, "dense", busy=2 * dense.busy, cpu=2 * dense.busy)
    found = model.corrected(learn(model, chosen, spun)).predict(chosen).stage("dense")
    assert found.busy == pytest.approx(2 * dense.busy, rel=0.01)


def test_a_factor_is_at_most_eight():
    model = model_of()
    measured = as_predicted(model.predict(ALONE), ALONE)
    measured = with_stage(measured, "dense", busy=1e3, cpu=1e3)
    measured = with_stage(measured, "push", busy=1e-12, cpu=1e-12)
    found = learn(model, ALONE, measured)
    assert found.of(place("dense")).core == 8
    assert found.of(place("push")).core == 1 / 8


def test_a_worker_shows_its_own_stages_alone():
    true, model = model_of().predict(SPLIT), model_of(core_bandwidth=0.5, route_key=2.0)
    of_sparse = learn(model, SPLIT, as_predicted(true, SPLIT))
    assert place("dense", role="dense") not in {each.place for each in of_sparse.found}
    assert of_sparse.of(place("route", role="sparse")).core == pytest.approx(0.5)
    of_dense = learn(model, SPLIT, as_predicted(true, SPLIT, role="dense"))
    assert [each.place for each in of_dense.found] == [place("dense", role="dense")]
    both = learn(model.corrected(of_sparse), SPLIT, as_predicted(true, SPLIT, role="dense"))
    found = model.corrected(both).predict(SPLIT)
    assert found.step_seconds == pytest.approx(true.step_seconds, rel=0.03)


def test_a_short_run_shows_nothing():
    model = model_of(pull_row=2.0)
    measured = as_predicted(model_of().predict(ALONE), ALONE, num_steps=19)
    assert learn(model, ALONE, measured) == Corrections(model.applied.basis)


def test_a_run_of_another_batch_is_held_against_that_batch():
    model, larger = model_of(), replace(ALONE, batch_size=3000)
    measured = as_predicted(model.predict(larger), larger)
    for each in learn(model, replace(ALONE, batch_size=None), measured).found:
        assert (each.core, each.rest) == pytest.approx((1.0, 1.0))


def test_what_was_learned_with_other_rates_is_left_aside():
    model = model_of(core_bandwidth=2.0)
    learned = learn(model, ALONE, as_predicted(model_of().predict(ALONE), ALONE))
    rate = Rate("pull", "here", Spread.of([1e-6]), dim=16, optimizer="adagrad", size=1000)
    profiled = CostModel(HERE.with_rates([rate]), workload(), model.constants, learned)
    plain = CostModel(profiled.cluster, workload(), model.constants)
    assert profiled.predict(ALONE) == plain.predict(ALONE)
    assert model.corrected(learned).predict(ALONE) != model.predict(ALONE)
    anew = learn(profiled, ALONE, as_predicted(plain.predict(ALONE), ALONE))
    assert {each.runs for each in anew.found} == {1}


def test_what_was_learned_holds_for_more_machines_at_another_price():
    def basis(**changes):
        host = replace(HERE.hosts[0], **changes)
        cluster = Cluster(
            (host,), (Link(("here", "switch"), "NIC", 1e9, 0.0),), (Switch("switch"),)
        )
        return CostModel(cluster, workload()).applied.basis

    assert basis(count=3, price_per_hour=1.0) == basis()
    faster = Device("cpu", memory=10**12, cores=2, flops=(("float32", 1e12),))
    assert basis(devices=(faster,)) != basis()


def test_a_prediction_tells_what_is_corrected():
    model = model_of()
    assert model.predict(SERVED).corrected == ()
    basis = model.applied.basis
    found = (
        Correction(place("dense"), 1.3, 1.0, 5),
        Correction(place("pull", peer="here"), 2.0, 2.0, 1),
        Correction(place("pull"), 7.0, 7.0, 1),  # without servers: another plan's
    )
    told = model.corrected(Corrections(basis, found)).predict(SERVED).corrected
    assert told == (
        "pull on here by 2.00, as a run showed",
        "dense on here by 1.30, as 5 runs showed",
    )
