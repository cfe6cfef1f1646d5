"""How much memory does each device and each machine need at its peak?"""

from collections import defaultdict
from collections.abc import Iterator

from hetero_pipe.cost.job import Job
from hetero_pipe.cost.memory import KEY_BYTES, dense_memory, device_rows_memory, rows_memory
from hetero_pipe.plan import Breakdown, MemoryPrediction, ProcessPlan

__all__ = ["predict_memory"]


def predict_memory(job: Job) -> Iterator[MemoryPrediction]:
    """Yields the memory of each device and each machine that is used, of all processes there.

    All processes of a machine share its memory; each has an accelerator of its own.
    """
    of_machine: dict[str, list[tuple[ProcessPlan, Breakdown]]] = defaultdict(list)
    for processes in job.roles.processes:
        peak = _process_peak(job, processes)
        of_machine[processes.host].append((processes, peak.times(processes.per_machine)))
    dense = job.roles.dense
    if dense.device != "cpu":
        memory = job.cluster.device(
            f"{job.cluster.host(dense.host).names[0]}/{dense.device}:0"
        ).memory
        yield _memory(job, dense, dense.device, _device_peak(job), memory)
    for host, found in of_machine.items():
        largest = max(found, key=lambda each: each[1].total)[0]
        peak = Breakdown.sum(each for _, each in found)
        yield _memory(job, largest, "cpu", peak, job.cluster.host(host).memory)


def _process_peak(job: Job, processes: ProcessPlan) -> Breakdown:
    """Returns the bytes of a process in its machine's memory."""
    constants, workload = job.constants, job.workload
    if processes.role == "server":
        share = min(workload.skew / job.most.num_servers, 1.0)
        rows = rows_memory(job.plan, workload, share=share)
        kept = _kept(job, processes, rows=rows.total, message=_message(job) * share)
        return Breakdown.sum((Breakdown.of("process", constants.server_process), rows, kept))
    message = _message(job) if job.roles.servers is not None else 0.0
    has_rows = processes.role != "dense" and job.roles.servers is None
    rows = rows_memory(job.plan, workload, share=1.0) if has_rows else Breakdown()
    kept = _kept(job, processes, rows=rows.total, message=message)
    peak = Breakdown.of("process", constants.process) + kept + rows
    if processes.role != "dense":
        peak += _in_flight(job)
    if processes.role != "sparse" and processes.device == "cpu":
        peak += _device_peak(job)
    return peak


def _kept(job: Job, processes: ProcessPlan, *, rows: float, message: float) -> Breakdown:
    """Returns the bytes of a process that stay with it beside what it uses at one time.

    Args:
        job: Has it.
        processes: What it is.
        rows: Bytes of the tables in it.
        message: Bytes of the largest message to a server, or from one.
    """
    constants, role, ahead = job.constants, processes.role, job.plan.staleness
    found = constants.kept_table * rows
    if role == "server":
        found += (constants.kept_served + constants.kept_served_ahead * ahead) * message
        return Breakdown.of("kept by allocators", found)
    found += constants.kept_base
    if role == "whole" and job.roles.servers is not None:
        kept = constants.kept_message + constants.kept_message_ahead * ahead
        found += constants.kept_client + kept * message
    if role == "whole" and job.roles.servers is None:
        found += constants.kept_row * job.pushed_bytes
    if role == "whole" and processes.device != "cpu":
        found += constants.kept_upload * job.pushed_bytes
    if role in ("sparse", "dense"):
        kept = constants.kept_cut + constants.kept_cut_ahead * ahead
        found += kept * job.sent_floats + constants.kept_sent * job.sent_bytes
    if role != "sparse" and processes.device == "cpu":
        found += constants.kept_activation * job.graph.activation_bytes(job.batch)
        found += constants.kept_varying * job.graph.varying_bytes(job.batch)
    return Breakdown.of("kept by allocators", found)


def _message(job: Job) -> float:
    """Returns the bytes of a push to all servers, of keys and gradients."""
    return job.pushed_bytes + KEY_BYTES * sum(job.rows(table) for table in job.tables("host"))


def _device_peak(job: Job) -> Breakdown:
    """Returns the bytes of the dense part, and of the rows that are where it is."""
    state = job.workload.dense_state
    dense = job.once("dense memory", lambda: dense_memory(job.graph, job.batch, state=state))
    return dense + device_rows_memory(job.plan, job.workload, num_devices=job.most.num_dense)


def _in_flight(job: Job) -> Breakdown:
    """Returns the bytes of the batches that are read ahead, and of those between two stages."""
    capacities = {stage.name: stage.capacity for stage in job.plan.stages}
    # Each thread has one beside those that wait: of the reader, and of the four stages.
    read = 1 + capacities["read"]
    routed = 4 + capacities["route"] + capacities["pull"] + capacities["dense"]
    keys = sum(job.rows(table) for table in job.tables("host")) * KEY_BYTES
    moved = job.pulled_bytes + job.pushed_bytes + 2 * keys
    return Breakdown.sum(
        (
            Breakdown.of("batches read ahead", job.batch_bytes * read),
            Breakdown.of("batches under way", job.batch_bytes * routed),
            Breakdown.of("rows under way", moved * (2 + job.plan.staleness)),
        )
    )


def _memory(
    job: Job, processes: ProcessPlan, device: str, peak: Breakdown, memory: float
) -> MemoryPrediction:
    capacity = memory * job.constants.usable_memory
    return MemoryPrediction(processes.role, processes.host, device, peak, capacity)
