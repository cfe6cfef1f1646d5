"""An executor without threads: every stage of a step, then the next step."""


def run_serially(source, stages, *, first_step=0):
    """Yields step and item of each step, as `Executor.results` does."""
    for step, item in enumerate(source, first_step):
        for stage in stages:
            item = stage.run(step, item)  # noqa: PLW2901
        yield step, item
