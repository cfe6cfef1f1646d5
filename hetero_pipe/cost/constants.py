"""What is assumed of a machine where nobody measured it."""

from dataclasses import dataclass

__all__ = ["Constants"]


@dataclass(frozen=True)
class Constants:
    """Seconds and shares that stand in for rates; `hetero-pipe profile` replaces what it can.

    Attributes:
        matmul_efficiency: Share of its peak FLOP/s that a matmul reaches; 0.65 is what
            Paddle's own estimator takes.
        memory_efficiency: Share of the memory bandwidth that an elementwise op reaches.
        core_flops: Of one core where no peak is known, in float32.
        core_bandwidth: Bytes/s of one core where nothing is known.
        launch: Of one op: what the worker's thread takes to start it.
        kernel: Least time of an op on a device that is no CPU.
        read_value: A value (key, dense column or label) that the reader cuts from its columns.
        route_key: Of a batch: to hash it, find it among the distinct ones and its server.
        pull_row: Of a table of 16 weights a row: a row that is in no cache.
        push_row: Likewise, with its optimizer.
        call: A request to a server on this host and back.
        call_cpu: Of it, on a core of the worker; the server's is as much.
        message_byte: A byte of a message: packed, handed to the system, and unpacked.
        step: Of one step: what a worker's threads take whatever the model.
        look: Share of a core that a thread takes which waits for a device: it looks again.
        kept_table: Share of a table's bytes that is kept beside it. All that is kept was found by
            runs here; benchmarks/cost_error tells by which.
        kept_base: Bytes that a worker keeps once it trained, whatever that was.
        kept_client: Bytes that a worker with servers keeps beside, whatever it sends them.
        kept_row: Bytes that a worker with tables of its own keeps for a byte of a batch's rows.
        kept_upload: Likewise, of rows that are on their way to a device and back.
        kept_message: Bytes that a worker keeps for a byte of the largest message to all servers.
        kept_message_ahead: Likewise, for each step of staleness.
        kept_served: Bytes that a server keeps for a byte of the largest message to it.
        kept_served_ahead: Likewise, for each step of staleness.
        kept_activation: Bytes that a worker keeps for a byte of activations on a CPU: blocks are
            kept by size, each size as many as there were at one time.
        kept_varying: Likewise, of those of another size in each batch, which are of several sizes.
        kept_cut: Bytes that either end keeps for a byte of cuts, as float32.
        kept_cut_ahead: Likewise, for each step of staleness.
        kept_sent: Likewise, for a byte of them as they are sent.
        process: Bytes of a worker's process before it trains.
        server_process: Bytes of a server's process before it has rows.
        usable_memory: Share of a device's memory that a plan may use.
    """

    matmul_efficiency: float = 0.65
    memory_efficiency: float = 0.7
    core_flops: float = 30e9
    core_bandwidth: float = 5e9
    launch: float = 15e-6
    kernel: float = 4e-6
    read_value: float = 4e-9
    route_key: float = 30e-9
    pull_row: float = 60e-9
    push_row: float = 90e-9
    call: float = 400e-6
    call_cpu: float = 150e-6
    message_byte: float = 1e-9
    step: float = 300e-6
    look: float = 0.045
    kept_table: float = 0.066
    kept_base: float = 16.5e6
    kept_client: float = 13e6
    kept_row: float = 0.5
    kept_upload: float = 11.6
    kept_message: float = 3.7
    kept_message_ahead: float = 0.6
    kept_served: float = 12.0
    kept_served_ahead: float = 1.8
    kept_activation: float = 0.6
    kept_varying: float = 3.8
    kept_cut: float = 9.0
    kept_cut_ahead: float = 2.4
    kept_sent: float = 6.5
    process: float = 350e6
    server_process: float = 80e6
    usable_memory: float = 0.9
