"""What pulls see and what servers hold, read off the rows themselves, whatever is slow or fails.

Push t subtracts 3^t from weights that start at 0, so a weight is a list of counts: its digit t in
base 3 says how often push t was applied to it.
"""

import enum
import json
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_pipe.client import Client
from hetero_pipe.client.transport import grpc as transport
from hetero_pipe.data import Bags, Batch
from hetero_pipe.errors import ServerUnavailable, StageError
from hetero_pipe.nn import StepOutput
from hetero_pipe.pipeline import StalenessGate
from hetero_pipe.plan import STAGES, Plan, StagePlan, TablePlan
from hetero_pipe.trainer.build import build_training
from hetero_pipe.trainer.stages import PullStage, PushStage, RouteStage, TrainStage
from ps_server.server import Server
from ps_server.spec import SGD, Constant, TableSpec
from tests.oracles.serial_executor import run_serially

LATER = 20.0
NUM_STEPS = 12
TABLE = "witness"
SPEC = TableSpec(TABLE, 1, SGD(1.0), Constant(0.0))
KEYS = np.arange(40, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # of every server


class Fault(enum.Enum):
    """What goes wrong at a step, where."""

    NONE = enum.auto()
    READ = enum.auto()
    PULL = enum.auto()
    DENSE = enum.auto()
    PUSH_UNSENT = enum.auto()
    PUSH_UNACKNOWLEDGED = enum.auto()  # applied, and then the connection is lost
    COUNT = enum.auto()
    STOP = enum.auto()  # Ctrl-C: no step more, those under way end
    LEAVE = enum.auto()  # a second one


class Injected(Exception):
    """By these tests."""


class FaultyClient(Client):
    """A client whose calls are slow and fail as told."""

    def __init__(self, servers, script):
        super().__init__(servers)
        self.script = script
        self.num_pulls = 0
        self.attach([SPEC])

    def pull(self, keys, *, insert, **options):
        self.script.at(Fault.PULL, self.num_pulls)
        self.num_pulls += 1
        rows = super().pull(keys, insert=insert, **options)
        self.script.delay()
        return rows

    def push(self, keys, gradients, *, step):
        self.script.at(Fault.PUSH_UNSENT, step - 1)
        super().push(keys, gradients, step=step)
        self.script.at(Fault.PUSH_UNACKNOWLEDGED, step - 1)


@dataclass
class Script:
    """What is slow, what fails, and what was seen."""

    fault: Fault = Fault.NONE
    step: int = 0
    seed: int = 0
    longest: float = 2e-3
    seen: list = field(default_factory=list)  # by each pull, in step order: digits [u, NUM_STEPS]
    counted: list = field(default_factory=list)

    def __post_init__(self):
        self._never = threading.Event()

    def delay(self):
        rng = np.random.default_rng([self.seed, threading.get_ident() % 1000, len(self.counted)])
        if rng.random() < 0.5:
            self._never.wait(rng.random() * self.longest)

    def at(self, fault, step):
        self.delay()
        if (self.fault, self.step) != (fault, step):
            return
        if fault is Fault.PUSH_UNACKNOWLEDGED:
            raise ServerUnavailable("injected")
        raise Injected(fault.name)

    def batches(self):
        """The same keys in every step, so that each weight has every push."""
        for step in range(NUM_STEPS):
            self.at(Fault.READ, step)
            yield Batch(
                bags={"slot": Bags(KEYS)},
                dense=np.zeros((len(KEYS), 0), np.float32),
                label=np.zeros(len(KEYS), np.float32),
                dense_names=(),
            )

    # As a DenseStep.
    def upload(self, batch, tables):
        return None

    def train(self, step, batch, tables, *, uploaded=None):
        rows = tables[TABLE].rows
        self.seen.append(digits_of(rows[:, 0]))
        self.at(Fault.DENSE, step)
        gradients = {TABLE: np.full_like(rows, 3.0**step)}
        return StepOutput(gradients, 0.0, np.zeros(batch.size, np.float32))

    def count(self, step, trained):
        self.at(Fault.COUNT, step)
        self.counted.append(step)
        return step


def digits_of(weights):
    """Returns how often each push was applied to each weight, `[n, NUM_STEPS]`."""
    left = np.round(-weights.astype(np.float64)).astype(np.int64)
    digits = []
    for _ in range(NUM_STEPS):
        digits.append(left % 3)
        left //= 3
    assert not left.any()
    return np.stack(digits, axis=1)


def held_by(client):
    """Returns what the servers hold, likewise: by server."""
    routed = client.route(KEYS)
    rows = Client.pull(client, {TABLE: routed}, insert=False)[TABLE][:, 0]
    return [digits_of(rows[routed.slice_of(server)]) for server in range(len(client.addresses))]


def plan_of(staleness, capacities):
    return Plan(
        stages=tuple(
            StagePlan(name, "cpu", capacity)
            for name, capacity in zip(STAGES, capacities, strict=True)
        ),
        tables=(TablePlan(TABLE, 1, ("slot",), ()),),
        staleness=staleness,
    )


def run(script, client, *, staleness, capacities=(4, 2, 5, 1, 16)):
    """Returns the steps that came out, the error, and the gate."""
    executor, gate = build_training(
        plan_of(staleness, capacities),
        script.batches(),
        client=client,
        dense=script,
        first_step=0,
        count=script.count,
    )
    out, error = [], None
    try:
        with executor:
            for step, counted in executor.results():
                assert step == counted
                out.append(step)
                if script.fault in (Fault.STOP, Fault.LEAVE) and step == script.step:
                    if script.fault is Fault.LEAVE:
                        raise Injected("LEAVE")
                    executor.stop()
    except Exception as raised:
        error = raised
    return out, error, gate


def watched(function, *arguments, **options):
    """Returns what a function does in a thread of its own that must end."""
    assert not hung, "an earlier run never ended"  # hypothesis would wait again, to shrink it
    result = []
    thread = threading.Thread(
        target=lambda: result.append(function(*arguments, **options)), daemon=True
    )
    before = set(threading.enumerate())
    thread.start()
    thread.join(LATER)
    if thread.is_alive():
        hung.append(thread)
    assert not hung, "the run never ended"
    left = {t for t in set(threading.enumerate()) - before if t.name in STAGES}
    assert not left, f"threads left behind: {left}"
    return result[0]


def assert_bound(seen, staleness):
    """Pull t has each push up to t - 1 - k once, perhaps later ones up to t - 1, and no other."""
    for step, digits in enumerate(seen):
        must = max(step - staleness, 0)
        assert np.all(digits[:, :must] == 1), f"pull {step} missed more than {staleness} pushes"
        assert np.all(digits <= 1), f"pull {step} saw a push twice"
        assert not digits[:, step:].any(), f"pull {step} saw a push before it was made"


def assert_prefix(held, num_applied):
    """Of each server: exactly the first pushes, each once."""
    for digits in held:
        assert np.all(digits[:, :num_applied] == 1), "a push was lost, or applied twice"
        assert not digits[:, num_applied:].any(), "a push of a step that failed was applied"


def check(script, client, staleness, capacities):
    out, error, gate = watched(run, script, client, staleness=staleness, capacities=capacities)
    at = script.step
    assert out == list(range(len(out)))
    assert_bound(script.seen, staleness)
    assert gate.largest_seen <= staleness
    held = held_by(client)
    match script.fault:
        case Fault.NONE:
            assert error is None
            assert out == list(range(NUM_STEPS))
            assert_prefix(held, NUM_STEPS)
        case Fault.STOP:
            assert error is None
            assert len(out) > at
            assert script.counted == out
            assert_prefix(held, len(out))
        case Fault.LEAVE:
            assert isinstance(error, Injected)
            assert out == list(range(at + 1))
            num_applied = int(held[0][0].sum())
            assert at < num_applied <= NUM_STEPS
            assert_prefix(held, num_applied)
        case _:
            if script.fault is Fault.PUSH_UNACKNOWLEDGED:
                assert isinstance(error, ServerUnavailable)
            else:
                assert isinstance(error, StageError)
                assert isinstance(error.__cause__, Injected)
                assert error.__cause__.args == (script.fault.name,)
                assert f"at step {at}" in str(error)
            assert out == list(range(at))
            assert script.counted == out
            is_applied = script.fault in (Fault.PUSH_UNACKNOWLEDGED, Fault.COUNT)
            assert_prefix(held, at + is_applied)


hung = []

scripts = st.builds(
    Script,
    fault=st.sampled_from(Fault),
    step=st.integers(0, NUM_STEPS - 1),
    seed=st.integers(0, 2**16),
)
capacities = st.tuples(*[st.integers(1, 4)] * len(STAGES))
thorough = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@settings(thorough, max_examples=120)
@given(script=scripts, staleness=st.integers(0, 4), capacities=capacities)
def test_no_pull_misses_more_than_k_and_no_push_is_lost_or_doubled(script, staleness, capacities):
    with FaultyClient(None, script) as client:
        check(script, client, staleness, capacities)


@settings(thorough, max_examples=15)
@given(script=scripts, staleness=st.integers(0, 4), capacities=capacities)
def test_likewise_on_two_servers(script, staleness, capacities):
    with (
        Server("127.0.0.1:0") as one,
        Server("127.0.0.1:0") as two,
        FaultyClient([one.address, two.address], script) as client,
    ):
        check(script, client, staleness, capacities)


@pytest.mark.parametrize("staleness", [1, 2, 3, 4])
def test_the_bound_is_tight(staleness):
    """While step 0 is trained, pull k is let through, and has no push at all."""

    class Holding(Script):
        def train(self, step, batch, tables, *, uploaded=None):
            if step == 0:
                assert client.has_pulled_all.wait(LATER)
            return super().train(step, batch, tables)

    class Telling(FaultyClient):
        has_pulled_all = threading.Event()

        def pull(self, keys, *, insert, **options):
            rows = super().pull(keys, insert=insert, **options)
            if self.num_pulls == staleness + 1:
                self.has_pulled_all.set()
            return rows

    script = Holding()
    with Telling(None, script) as client:
        out, error, gate = watched(
            run, script, client, staleness=staleness, capacities=(1, 1, staleness, 1, 1)
        )
        assert error is None
        assert len(out) == NUM_STEPS
        assert_bound(script.seen, staleness)
        assert not script.seen[staleness].any(), "pull k misses all k pushes before it"
        assert gate.largest_seen == staleness


@settings(thorough, max_examples=10)
@given(seed=st.integers(0, 2**16), capacities=capacities)
def test_staleness_zero_sees_what_the_serial_executor_sees(seed, capacities):
    serial = Script(longest=0.0)
    with FaultyClient(None, serial) as client:
        gate = StalenessGate(0)
        stages = [
            RouteStage(client, {TABLE: ("slot",)}),
            PullStage(client, insert=True, gate=gate),
            TrainStage(serial),
            PushStage(client, gate, serial.count),
        ]
        expected = [step for step, _ in run_serially(serial.batches(), stages)]
        expected_held = held_by(client)
    script = Script(seed=seed)
    with FaultyClient(None, script) as client:
        out, error, _ = watched(run, script, client, staleness=0, capacities=capacities)
        assert (out, error) == (expected, None)
        np.testing.assert_array_equal(script.seen, serial.seen)
        np.testing.assert_array_equal(held_by(client), expected_held)


# ------------------------------------------------------------------ a connection that is lost


class Proxy:
    """Stands before a server and, when told, lets requests through but no answer.

    Attributes:
        address: Of the proxy.
        num_connections: That clients made.
    """

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._deaf = set()
        self.num_connections = 0
        self._sockets = []
        self._threads = [self._start(self._accept)]

    def _start(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.num_connections += 1
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self._threads += [
                    self._start(self._pass, client, server),
                    self._start(self._pass, server, client),
                ]

    def _pass(self, source, target):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._deaf:
                    target.sendall(data)

    def deafen(self):
        """From now on, no answer comes over the connections that are there."""
        self._deaf = set(self._sockets[1::2])

    def cut(self):
        """Closes every connection."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(LATER)


@contextmanager
def behind_a_proxy(number):
    with ExitStack() as stack:
        servers = [stack.enter_context(Server("127.0.0.1:0")) for _ in range(number)]
        proxies = [Proxy(server.address) for server in servers]
        for proxy in proxies:
            stack.callback(proxy.close)
        yield [server.address for server in servers], proxies


RETRY = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.01s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


@pytest.mark.parametrize("config", [None, RETRY])
def test_a_push_whose_ack_is_lost_is_applied_once_and_told(config, wait_until, monkeypatch):
    """No retry of grpc sends it again over a new connection, even where a service asks for it."""
    if config is not None:
        options = [*transport.OPTIONS, ("grpc.service_config", json.dumps(config))]
        monkeypatch.setattr(transport, "OPTIONS", options)
    with behind_a_proxy(1) as ((server,), (proxy,)), Client([proxy.address]) as client:
        client.attach([SPEC])
        routed = client.route(KEYS)
        client.pull({TABLE: routed}, insert=True)
        gradients = {TABLE: np.ones((len(KEYS), 1), np.float32)}
        client.push({TABLE: routed}, gradients, step=1)

        proxy.deafen()
        failures = []

        def push():
            try:
                client.push({TABLE: routed}, {TABLE: gradients[TABLE] * 3}, step=2)
            except ServerUnavailable as error:
                failures.append(error)

        thread = threading.Thread(target=push)
        thread.start()
        with Client([server]) as direct:
            direct.attach([SPEC])

            def held():
                rows = direct.pull({TABLE: direct.route(KEYS)}, insert=False)
                return digits_of(rows[TABLE][:, 0])

            wait_until(lambda: bool(held()[:, 1].all()))
            proxy.cut()
            thread.join(LATER)
            assert len(failures) == 1
            assert proxy.address in str(failures[0])
            # The client connects anew for its next call: what it would send again, it would by now.
            assert client.num_rows() == {TABLE: len(KEYS)}
            assert proxy.num_connections == 2
            assert np.all(held()[:, :2] == 1)
            assert not held()[:, 2:].any()
