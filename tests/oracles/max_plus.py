"""When each stage of each worker does each step, if nobody waits for a core: as recurrences.

Take, begin, end and put of step i in stage s of worker w, slow and obvious:

    take[s][i]  = max(put[s-1][i], put[s][i-1])          there is an item, and nothing else to do
    begin[s][i] = take[s][i]                             but for the waits of a mode
    end[s][i]   = begin[s][i] + seconds[s]
    put[s][i]   = max(end[s][i], take[s+1][i-capacity])  there is room behind it

Reference:
    Baccelli, Cohen, Olsder and Quadrat, "Synchronization and Linearity", Wiley 1992.
"""

STAGES = ("read", "route", "pull", "dense", "push")


def ends_of_steps(seconds, capacities, *, num_steps, staleness, mode):
    """Returns, by worker, when each push ends, and what each stage waited for room in all.

    `seconds[w][s]`; `capacities[s]`, of four stages.
    """
    workers = range(len(seconds))
    take, end, put = {}, {}, {}

    def pushed(w, i):
        return end[w, 4, i] if i >= 0 else 0.0

    for i in range(num_steps):
        for s, name in enumerate(STAGES):
            begin = {}
            for w in workers:
                before = put[w, s - 1, i] if s else 0.0
                take[w, s, i] = max(before, put.get((w, s, i - 1), 0.0))
                begin[w] = take[w, s, i]
                if name == "pull" and mode != "async":
                    own_and_others = workers if mode == "bounded" else [w]
                    waits = [pushed(v, i - 1 - staleness) for v in own_and_others]
                    begin[w] = max(begin[w], *waits)
            if name == "push" and mode == "sync":
                begin = dict.fromkeys(workers, max(begin.values()))
            for w in workers:
                end[w, s, i] = begin[w] + seconds[w][s]
            if name == "dense" and mode == "sync":
                last = max(end[w, s, i] for w in workers)
                end.update({(w, s, i): last for w in workers})
            for w in workers:
                room = 0.0
                if s < 4 and i - capacities[s] - 1 >= -1:
                    room = take.get((w, s + 1, i - capacities[s]), 0.0)
                put[w, s, i] = max(end[w, s, i], room)
    steps = range(num_steps)
    blocked = [[sum(put[w, s, i] - end[w, s, i] for i in steps) for s in range(5)] for w in workers]
    return [[end[w, 4, i] for i in steps] for w in workers], blocked
