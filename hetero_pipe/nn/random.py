"""The state of Paddle's random generators, which Dropout draws from, as plain arrays and back."""

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.nn.device import current_device, generator_of

__all__ = ["Generators", "load_random_state", "random_state"]

logger = logging.getLogger(__name__)


class Generators:
    """The generators of Paddle that a model may draw from, as they stood when this was made.

    Two microseconds to make: Paddle copies a state when it is next drawn from.
    """

    def __init__(self) -> None:
        self._states = [(g, g.get_state()) for g in _generators().values()]

    def restore(self) -> None:
        """Sets them back."""
        for generator, state in self._states:
            generator.set_state(state)


def random_state() -> dict[str, NDArray[Any]]:
    """Returns the state of each generator, by its device: `cpu`, `gpu:0`.

    It is a text: JSON of what Paddle pickles, its device, seed and offset and,
    on a CPU, the words of the Mersenne Twister. Paddle 2.6 does not tell these
    words, so with it the state of a CPU is left out.
    """
    state = {}
    for name, generator in _generators().items():
        device, seed, offset, *engine = generator.get_state().__getstate__()
        if engine or name != "cpu":
            text = bytes(engine[0]).decode("ascii") if engine else ""
            state[name] = np.array(json.dumps([device, seed, offset, text]))
    return state


def load_random_state(state: Mapping[str, NDArray[Any]]) -> None:
    """Sets the generators to what `random_state` returned.

    A device that was not saved, and with Paddle 2.6 a CPU, keeps its generator,
    and a warning says so.
    """
    kind = paddle.framework.core.GeneratorState
    for name, generator in _generators().items():
        has_engine = len(generator.get_state().__getstate__()) > 3
        if name not in state or (name == "cpu" and not has_engine):
            logger.warning(
                "the checkpoint was saved without device %s, or this Paddle cannot set it: what is "
                "drawn at random there, by Dropout and the like, is not what the saved run would "
                "have drawn",
                name,
            )
            continue
        device, seed, offset, text = json.loads(str(state[name]))
        loaded = kind.__new__(kind)
        engine = [list(text.encode("ascii"))] if has_engine else []
        loaded.__setstate__((device, seed, offset, *engine))
        generator.set_state(loaded)


def _generators() -> dict[str, Any]:  # Paddle has no types
    # What a device has no kernel for is drawn on the CPU.
    return {name: generator_of(name) for name in dict.fromkeys(("cpu", current_device()))}
