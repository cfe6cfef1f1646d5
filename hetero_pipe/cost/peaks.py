"""How much memory does each device and each machine need at its peak?"""

from collections.abc import Iterator

from hetero_pipe.cost.job import Job
from hetero_pipe.cost.memory import dense_memory, device_rows_memory, rows_memory
from hetero_pipe.plan import Breakdown, MemoryPrediction, ProcessPlan

__all__ = ["predict_memory"]


def predict_memory(job: Job) -> Iterator[MemoryPrediction]:
    """Yields the memory of each kind of device that is used."""
    constants, workload = job.constants, job.workload
    for processes in job.roles.processes:
        if processes.role == "server":
            share = workload.skew / job.roles.num_servers
            peak = rows_memory(job.plan, workload, share=share, constants=constants)
            peak += Breakdown.of("process", constants.server_process)
            yield _memory(job, processes, "cpu", peak.times(processes.per_machine))
            continue
        dense = dense_memory(job.graph, job.batch, state=workload.dense_state)
        dense += device_rows_memory(job.plan, workload)
        peak = Breakdown.of("process", constants.process)
        if processes.role != "dense":
            peak += _in_flight(job)
            if job.roles.servers is None:
                peak += rows_memory(job.plan, workload, share=1.0, constants=constants)
        if processes.role == "sparse":
            yield _memory(job, processes, "cpu", peak.times(processes.per_machine))
            continue
        if processes.device == "cpu":
            peak += dense
        else:
            yield _memory(job, processes, processes.device, dense)
        yield _memory(job, processes, "cpu", peak.times(processes.per_machine))


def _in_flight(job: Job) -> Breakdown:
    """Returns the bytes of the batches that are between two stages."""
    read_ahead = sum(stage.capacity for stage in job.plan.stages if stage.name != "push")
    return Breakdown.of("batches under way", job.batch_bytes * (read_ahead + 5)) + Breakdown.of(
        "rows under way", job.rows_bytes * 2 * (2 + job.plan.staleness)
    )


def _memory(job: Job, processes: ProcessPlan, device: str, peak: Breakdown) -> MemoryPrediction:
    host = job.cluster.host(processes.host)
    memory = host.memory
    if device != "cpu":
        memory = job.cluster.device(f"{host.names[0]}/{device}:0").memory
    capacity = memory * job.constants.usable_memory
    return MemoryPrediction(processes.role, host.name, device, peak, capacity)
