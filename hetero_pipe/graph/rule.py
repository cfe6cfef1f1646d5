"""What each kind of op costs: one table, read by `cost_of`.

FLOPs count arithmetic: a multiply and an add are two, an elementary function
(`exp`, `sqrt`) of one element is one, a comparison is one, a copy is none. Bytes
count each operand once, as if nothing stayed in a cache. A view moves nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hetero_pipe.graph.op import Attribute, Cost
from hetero_pipe.graph.size import ONE, ZERO, Size, product, total
from hetero_pipe.graph.tensor import Tensor

__all__ = ["RULES", "Call", "Costs", "Rule", "cost_of"]


@dataclass(frozen=True)
class Call:
    """An op as a tracer found it, before anything is known of its cost.

    Attributes:
        kind: As Paddle names it, or `pull`, `pool` or `push`.
        inputs: What it reads, in its order.
        outputs: What it makes.
        attributes: Of its settings, those that a rule asks for.
        layer: What part of the model it is of: calls of one part that follow
            each other are a layer.
        path: Of the sub-layer that called it.
        source: FILE:LINE.
        table: Of a pull or a pool: which.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, Attribute]
    layer: str
    path: str = ""
    source: str = ""
    table: str = ""

    def flag(self, name: str) -> bool:
        """Returns whether an attribute is there and true."""
        return bool(self.attributes.get(name, False))


@dataclass(frozen=True)
class Costs:
    """What `cost_of` found; the fields are those of `Op`."""

    forward: Cost
    backward: Cost
    saved: tuple[str, ...]
    is_view: bool
    is_known: bool


@dataclass(frozen=True)
class Rule:
    """How the costs of one kind of op follow from its operands.

    Attributes:
        flops: Of the forward.
        gradient: FLOPs of the gradient of one input.
        saves: What Paddle keeps for the backward: `inputs`, of these those of
            whole numbers and claims (`index`), `output`, the `rest` of the outputs
            (a mask, a mean), several of them, or nothing. As its kernels do, also
            where another gradient than the one that needs it is wanted.
        reads: Bytes that the forward reads, by default all inputs.
        writes: Bytes of the gradient of one input, by default as many as it has.
        is_view: Whether nothing moves, either way.
        reads_each: Whether each input's gradient is a kernel of its own, which
            reads that of the output again.
    """

    flops: Callable[[Call], Size]
    gradient: Callable[[Call, Tensor], Size]
    saves: tuple[str, ...] = ()
    reads: Callable[[Call], Size] | None = None
    writes: Callable[[Call, Tensor], Size] | None = None
    is_view: bool = False
    reads_each: bool = False


def cost_of(call: Call) -> Costs:
    """Returns the costs of a call by the rule of its kind, or by its bytes."""
    rule = RULES.get(call.kind)
    is_known = rule is not None and _fits(call)
    if rule is None or not is_known:
        rule = _UNKNOWN
    if rule.is_view:
        return Costs(Cost(), Cost(), (), is_view=True, is_known=is_known)
    read = total(t.bytes for t in call.inputs) if rule.reads is None else rule.reads(call)
    forward = Cost(rule.flops(call), read, total(t.bytes for t in call.outputs))
    wanted = [t for t in call.inputs if t.needs_gradient]
    if not wanted or not any(t.needs_gradient for t in call.outputs):
        return Costs(forward, Cost(), (), is_view=False, is_known=is_known)
    saved = _saved(rule, call)
    upstream = total(t.bytes for t in call.outputs if t.needs_gradient)
    writes = rule.writes or (lambda _, tensor: tensor.bytes)
    backward = Cost(
        flops=total(rule.gradient(call, t) for t in wanted),
        bytes_read=upstream * (len(wanted) if rule.reads_each else 1)
        + total(t.bytes for t in saved),
        bytes_written=total(writes(call, t) for t in wanted),
    )
    names = tuple(dict.fromkeys(t.name for t in saved))
    return Costs(forward, backward, names, is_view=False, is_known=is_known)


def _fits(call: Call) -> bool:
    """Returns whether the rule of a call's kind can be asked: what it reads is there."""
    if call.kind == "einsum":
        return "." not in str(call.attributes.get("equation", "."))
    return bool(call.inputs) or call.kind in _WRITING


def _saved(rule: Rule, call: Call) -> list[Tensor]:
    choices = {
        "inputs": call.inputs,
        "index": tuple(t for t in call.inputs if _is_index(t)),
        "output": call.outputs[:1],
        "rest": call.outputs[1:],
    }
    return [tensor for what in rule.saves for tensor in choices[what]]


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype.startswith(("int", "uint", "bool"))


# ------------------------------------------------------------------ FLOPs


def _none(*_: object) -> Size:
    return ZERO


def _of_output(per_element: int) -> Callable[..., Size]:
    return lambda call, *_: call.outputs[0].numel * per_element


def _of_input(per_element: int) -> Callable[..., Size]:
    return lambda call, *_: call.inputs[0].numel * per_element


def _broadcast(per_element: int) -> Callable[[Call, Tensor], Size]:
    """Returns the gradient of an elementwise op; that of a smaller input is summed up."""

    def gradient(call: Call, tensor: Tensor) -> Size:
        numel = call.outputs[0].numel
        return numel * (per_element + (tensor.numel != numel))

    return gradient


def _matmul(call: Call, *_: object) -> Size:
    x = call.inputs[0].shape
    inner = x[-2] if call.flag("transpose_x") and len(x) > 1 else x[-1]
    return call.outputs[0].numel * inner * 2


def _addmm(call: Call) -> Size:  # beta * input + alpha * x @ y
    return call.outputs[0].numel * (call.inputs[1].shape[-1] * 2 + 2)


def _addmm_gradient(call: Call, tensor: Tensor) -> Size:
    if tensor == call.inputs[0]:
        return _broadcast(0)(call, tensor)
    return call.outputs[0].numel * call.inputs[1].shape[-1] * 2


def _conv(call: Call, *_: object) -> Size:  # weight [out, in / groups, *kernel], in each layout
    return call.outputs[0].numel * product(call.inputs[1].shape[1:]) * 2


def _einsum(call: Call, *_: object) -> Size:
    operands, arrow, result = str(call.attributes["equation"]).replace(" ", "").partition("->")
    assert arrow, "Paddle writes the result's letters"
    sizes = {
        letter: size
        for letters, tensor in zip(operands.split(","), call.inputs, strict=True)
        for letter, size in zip(letters, tensor.shape, strict=True)
    }
    # A multiply for each operand after the first, an add where something is summed.
    return product(sizes.values()) * (len(call.inputs) - 1 + (set(sizes) != set(result)))


def _scale(call: Call) -> Size:
    return call.outputs[0].numel * (2 if call.attributes.get("bias", 0) else 1)


def _attention(call: Call, *_: object) -> Size:  # q, k, v [batch, length, heads, dim]
    q, k = call.inputs[:2]
    scores = product((q.shape[0], q.shape[1], q.shape[2], k.shape[1]))
    return scores * (q.shape[3] * 4 + 5)


def _attention_gradient(call: Call, tensor: Tensor) -> Size:
    # Scores again and two products for q and k, two for v and the scores: five of one size.
    return _attention(call) * _share(5, 6) if tensor in call.inputs[:3] else ZERO


def _share(numerator: int, denominator: int) -> Size:
    return ONE.divided(denominator) * numerator


def _rnn(call: Call, *_: object) -> Size:  # input [time, batch, in], then states and weights
    matrices = (t for t in call.inputs[1:] if t.is_parameter and len(t.shape) == 2)
    return total(_rnn_product(call, matrix) for matrix in matrices)


def _rnn_gradient(call: Call, tensor: Tensor) -> Size:
    if tensor == call.inputs[0]:
        return _rnn(call)
    is_matrix = tensor.is_parameter and len(tensor.shape) == 2
    return _rnn_product(call, tensor) if is_matrix else ZERO


def _rnn_product(call: Call, matrix: Tensor) -> Size:
    length, size = call.inputs[0].shape[:2]
    return matrix.numel * length * size * 2


def _norm(x: int, weight: int = 2, bias: int = 1) -> Callable[[Call, Tensor], Size]:
    """Returns the gradient of a normalisation, operations an element of its input."""

    def gradient(call: Call, tensor: Tensor) -> Size:
        numel = call.inputs[0].numel
        if tensor == call.inputs[0]:
            return numel * x
        return numel * (bias if tensor == call.inputs[-1] else weight)

    return gradient


# ------------------------------------------------------------------ bytes


def _picked(call: Call) -> Size:
    """Returns what a gather reads: the indexes, and of the rest what it takes."""
    return total(t.bytes for t in call.inputs if _is_index(t)) + call.outputs[0].bytes


def _output_bytes(call: Call) -> Size:
    return total(t.bytes for t in call.outputs)


def _embedding_gradient_bytes(call: Call, tensor: Tensor) -> Size:
    return call.outputs[0].bytes if call.flag("sparse") else tensor.bytes


# ------------------------------------------------------------------ the table


def _each(forward: int, gradient: int, *saves: str) -> Rule:
    """Returns the rule of an elementwise op, by operations an element of its output."""
    return Rule(_of_output(forward), _broadcast(gradient), saves)


def _reduced(gradient: int, *saves: str) -> Rule:
    return Rule(_of_input(1), _of_input(gradient), saves)


_PRODUCT = Rule(_matmul, _matmul, ("inputs",), reads_each=True)
_CONV = Rule(_conv, _conv, ("inputs",), reads_each=True)
_VIEW = Rule(_none, _none, is_view=True)
_COPY = Rule(_none, _none)
_PART = Rule(_none, _none, reads=_output_bytes)
_SPREAD = Rule(_none, _of_output(1))
_PICK = Rule(_none, _of_output(1), ("index",), reads=_picked)
_ATTENTION = Rule(_attention, _attention_gradient, ("inputs", "output", "rest"))
_UNKNOWN = Rule(_none, _none, ("inputs", "output", "rest"))

_WRITING = ("arange", "assign_value", "bernoulli", "full", "full_like", "gaussian", "uniform")

RULES: Mapping[str, Rule] = {
    # products
    "matmul": _PRODUCT,
    "bmm": _PRODUCT,
    "mv": _PRODUCT,
    "dot": Rule(_of_input(2), _of_input(1), ("inputs",)),
    "addmm": Rule(_addmm, _addmm_gradient, ("inputs",), reads_each=True),
    "einsum": Rule(_einsum, _einsum, ("inputs",), reads_each=True),
    "conv2d": _CONV,
    "conv3d": _CONV,
    "depthwise_conv2d": _CONV,
    "flash_attn": _ATTENTION,
    "memory_efficient_attention": _ATTENTION,
    "rnn": Rule(_rnn, _rnn_gradient, ("inputs", "output", "rest")),
    # elementwise: operations forward, backward, and what the backward reads
    "add": _each(1, 0),
    "subtract": _each(1, 0),
    "multiply": _each(1, 1, "inputs"),
    "divide": _each(1, 2, "inputs", "output"),
    "maximum": _each(1, 1, "inputs"),
    "minimum": _each(1, 1, "inputs"),
    "elementwise_pow": _each(1, 3, "inputs"),
    "scale": Rule(_scale, _broadcast(1)),
    "pow": _each(1, 3, "inputs"),
    "square": _each(1, 2, "inputs"),
    "sqrt": _each(1, 2, "output"),
    "rsqrt": _each(2, 3, "output"),
    "reciprocal": _each(1, 3, "output"),
    "exp": _each(1, 1, "output"),
    "log": _each(1, 1, "inputs"),
    "log1p": _each(2, 2, "inputs"),
    "abs": _each(1, 1, "inputs"),
    "sign": _each(1, 0),
    "sin": _each(1, 2, "inputs"),
    "cos": _each(1, 2, "inputs"),
    "clip": _each(2, 1, "inputs"),
    "where": _each(1, 1, "index"),
    "relu": _each(1, 1, "output"),
    "relu6": _each(2, 1, "output"),
    "leaky_relu": _each(2, 1, "inputs"),
    "prelu": _each(2, 2, "inputs"),
    "elu": _each(3, 2, "inputs", "output"),
    "sigmoid": _each(4, 3, "output"),
    "tanh": _each(1, 3, "output"),
    "silu": _each(5, 6, "inputs", "output"),
    "swish": _each(5, 6, "inputs"),
    "gelu": _each(5, 9, "inputs"),
    "softplus": _each(3, 3, "inputs"),
    "dropout": _each(2, 2, "rest"),
    "equal": _each(1, 0),
    "not_equal": _each(1, 0),
    "greater_than": _each(1, 0),
    "greater_equal": _each(1, 0),
    "less_than": _each(1, 0),
    "less_equal": _each(1, 0),
    "logical_and": _each(1, 0),
    "logical_or": _each(1, 0),
    "logical_not": _each(1, 0),
    "cumsum": _each(1, 1, "inputs"),
    # reductions
    "sum": _reduced(0),
    "mean": _reduced(1),
    "mean_all": _reduced(1),
    "max": _reduced(1, "inputs", "output"),
    "min": _reduced(1, "inputs", "output"),
    "prod": _reduced(2, "inputs", "output"),
    "logsumexp": Rule(_of_input(3), _of_input(3), ("inputs", "output")),
    "p_norm": Rule(_of_input(2), _of_input(3), ("inputs", "output")),
    "squared_l2_norm": Rule(_of_input(2), _of_input(2), ("inputs",)),
    "add_n": Rule(lambda call: call.outputs[0].numel * (len(call.inputs) - 1), _none),
    "argmax": _reduced(0),
    "argmin": _reduced(0),
    "segment_pool": Rule(_of_input(1), _none, ("index",)),
    # softmax, losses, norms
    "softmax": Rule(_of_output(5), _of_output(4), ("output",)),
    "log_softmax": Rule(_of_output(5), _of_output(4), ("output",)),
    "cross_entropy_with_softmax": Rule(
        lambda call: call.inputs[0].numel * 5 + call.outputs[1].numel,
        _of_input(2),
        ("index", "output"),
    ),
    "sigmoid_cross_entropy_with_logits": _each(9, 6, "inputs"),
    "bce_loss": _each(6, 5, "inputs"),
    "log_loss": _each(6, 5, "inputs"),
    "huber_loss": _each(5, 3, "inputs"),
    "layer_norm": Rule(_of_input(7), _norm(10), ("inputs", "rest")),
    "batch_norm": Rule(_of_input(7), _norm(10), ("inputs", "rest")),
    "group_norm": Rule(_of_input(7), _norm(10), ("inputs", "rest")),
    "instance_norm": Rule(_of_input(7), _norm(10), ("inputs", "rest")),
    "rms_norm": Rule(_of_input(4), _norm(8), ("inputs", "rest")),
    # rows by their index
    "embedding": Rule(
        _none, _of_output(1), ("index",), reads=_picked, writes=_embedding_gradient_bytes
    ),
    "gather": _PICK,
    "gather_nd": _PICK,
    "index_select": _PICK,
    "index_sample": _PICK,
    "take_along_axis": _PICK,
    # what moves bytes
    "assign": _COPY,
    "assign_out": _COPY,
    "cast": _COPY,
    "concat": _COPY,
    "flip": _COPY,
    "pad": _COPY,
    "pad3d": _COPY,
    "roll": _COPY,
    "split": _COPY,
    "split_with_num": _COPY,
    "stack": _COPY,
    "transpose": _COPY,
    "tril": _COPY,
    "triu": _COPY,
    "unbind": _COPY,
    "unstack": _COPY,
    "slice": _PART,
    "strided_slice": _PART,
    "expand": _SPREAD,
    "expand_as": _SPREAD,
    "tile": _SPREAD,
    "one_hot": _COPY,
    # what moves nothing
    "flatten": _VIEW,
    "reshape": _VIEW,
    "share_data": _VIEW,
    "squeeze": _VIEW,
    "unsqueeze": _VIEW,
    # what only writes
    **dict.fromkeys(_WRITING, Rule(_none, _none, reads=_none)),
}
"""By the kind of op, as Paddle names it without `pd_op.` and without the `_` of in-place ones."""
