"""Which ops of a model are never cut apart: those of one part of it."""

import paddle

from hetero_pipe.nn.embedding import Embedding

__all__ = ["Parts"]

_LISTS = (paddle.nn.Sequential, paddle.nn.LayerList, paddle.nn.LayerDict)


class Parts:
    """The parts of a model: its children, and where these are or hold lists of layers, theirs.

    ::

        DeepFM                 embedding, deep.0, deep.2; DeepFM for what it does itself
        ├── embedding
        └── deep (Sequential)
            ├── 0 (Linear)
            ├── 1 (ReLU)       has no parameters: goes with what is before it
            └── 2 (Linear)

    Args:
        model: Whose.
    """

    def __init__(self, model: paddle.nn.Layer) -> None:
        self.root = type(model).__name__
        self._parts = {"": self.root}
        self._bare: set[str] = set()
        self._add(model, "", part=None)

    def of(self, path: str, before: str | None = None) -> str:
        """Returns the part of what a sub-layer does.

        Args:
            path: Of the sub-layer.
            before: The part of what the model did before.
        """
        if before is not None and path in self._bare:
            return before
        return self._parts.get(path, self.root)

    def _add(self, layer: paddle.nn.Layer, path: str, *, part: str | None) -> None:
        """Adds the children of a layer: each a part, or all of the part that is not divided."""
        for name, child in layer.named_children():
            inner = f"{path}.{name}" if path else name
            self._parts[inner] = inner if part is None else part
            if not child.parameters() and not isinstance(child, Embedding):
                self._bare.add(inner)
            is_divided = part is None and _has_list(child)
            self._add(child, inner, part=None if is_divided else self._parts[inner])


def _has_list(layer: paddle.nn.Layer) -> bool:
    return any(isinstance(each, _LISTS) for each in layer.sublayers(include_self=True))
