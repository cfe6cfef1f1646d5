"""The points as an SVG: how much faster heterogeneous is, over the width of the dense part."""

import math
from collections.abc import Callable, Iterator, Sequence
from xml.sax.saxutils import escape

from ways import Point, Way

WIDTH, HEIGHT = 220, 160  # of a panel
LEFT, TOP, GAP_X, GAP_Y = 100, 96, 36, 40
LOWEST, HIGHEST = 0.1, 1000.0
PAPER = {Way.CPU_ONLY: 3.3, Way.GPU_ONLY: 2.1}
COLOURS = {Way.CPU_ONLY: "#1f6fb4", Way.GPU_ONLY: "#d9730d", Way.HETEROGENEOUS: "#3a7d34"}
LETTERS = {Way.CPU_ONLY: "C", Way.GPU_ONLY: "G", Way.HETEROGENEOUS: "H"}


def draw(points: Sequence[Point]) -> str:
    """Returns panels of rows and batch; in each, lines over the width, on logarithmic axes."""
    columns = list(dict.fromkeys((point.rows, point.cores) for point in points))
    batches = sorted({point.batch for point in points})
    widths = sorted({point.width for point in points})
    right = LEFT + len(columns) * (WIDTH + GAP_X)
    bottom = TOP + len(batches) * (HEIGHT + GAP_Y)
    size = max(right, 720), bottom + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{size[0]}" height="{size[1]}" fill="white"/>',
        *_legend(),
    ]
    for column, (rows, cores) in enumerate(columns):
        x = LEFT + column * (WIDTH + GAP_X)
        parts.append(_text(x, TOP - 24, f"2 tables of {rows / 1e9:g} billion rows"))
        parts.append(_text(x, TOP - 9, f"{cores} cores in a GPU host"))
        for row, batch in enumerate(batches):
            y = TOP + row * (HEIGHT + GAP_Y)
            there = [p for p in points if (p.rows, p.cores, p.batch) == (rows, cores, batch)]
            parts += _panel(x, y, sorted(there, key=lambda p: p.width), widths)
            if column == 0:
                parts.append(_text(8, y + HEIGHT / 2 - 6, "batch"))
                parts.append(_text(8, y + HEIGHT / 2 + 10, f"{batch:,}"))
    parts.append(_text(LEFT, bottom + 6, "width of each of three hidden layers"))
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> Iterator[str]:
    for i, (way, paper) in enumerate(PAPER.items()):
        said = f"heterogeneous over {way.value}, times; dashes: {paper} as published"
        yield _text(LEFT + 430 * i, 18, said, COLOURS[way])
    yield _text(
        LEFT,
        36,
        "lines: predicted; dots: simulated, rings where its GPUs are idle; x: the other one does "
        "not fit; grey: no gain",
    )
    x = LEFT
    yield _text(x, 54, "below: the planner's choice of all plans, ")
    for way, letter in LETTERS.items():
        yield _text(x + 290, 54, f"{letter} {way.value}", COLOURS[way], is_bold=True)
        x += 110


def _panel(x: float, y: float, points: Sequence[Point], widths: Sequence[int]) -> Iterator[str]:
    def at_x(width: float) -> float:
        if len(widths) == 1:
            return x + WIDTH / 2
        share = math.log(width / widths[0]) / math.log(widths[-1] / widths[0])
        return x + 12 + (WIDTH - 24) * share

    def at_y(ratio: float) -> float:
        ratio = min(max(ratio, LOWEST), HIGHEST)
        return y + HEIGHT * (1 - math.log(ratio / LOWEST) / math.log(HIGHEST / LOWEST))

    below = at_y(1.0)
    height = y + HEIGHT - below
    yield f'<rect x="{x}" y="{below:.1f}" width="{WIDTH}" height="{height:.1f}" fill="#eee"/>'
    yield f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>'
    for tick in (0.1, 1, 10, 100, 1000):
        yield _text(x - 4, at_y(tick) + 4, f"{tick:g}", anchor="end", size=10)
    for width in widths:
        yield _text(at_x(width), y + HEIGHT + 13, str(width), anchor="middle", size=10)
    for point in points:
        if (way := point.chosen.way) is not None:
            at = at_x(point.width), y + HEIGHT - 5
            yield _text(*at, LETTERS[way], COLOURS[way], anchor="middle", is_bold=True)
    for way, paper in PAPER.items():
        yield (
            f'<line x1="{x}" x2="{x + WIDTH}" y1="{at_y(paper):.1f}" y2="{at_y(paper):.1f}" '
            f'stroke="{COLOURS[way]}" stroke-dasharray="4 3" stroke-width="0.8"/>'
        )
        path = [(p.width, ratio) for p in points if (ratio := p.over(way)) is not None]
        if len(path) > 1:
            line = " ".join(f"{at_x(w):.1f},{at_y(r):.1f}" for w, r in path)
            yield f'<polyline points="{line}" fill="none" stroke="{COLOURS[way]}"/>'
        yield from (_mark(point, way, at_x(point.width), at_y, y) for point in points)


def _mark(point: Point, way: Way, x: float, at_y: Callable[[float], float], top: float) -> str:
    colour, ratio = COLOURS[way], point.over(way, is_simulated=True)
    if ratio is None:
        return _text(x, top + (14 if way is Way.GPU_ONLY else 26), "x", colour, anchor="middle")
    fill = colour if point.found[Way.HETEROGENEOUS].has_gpus else "white"
    at = f'cx="{x:.1f}" cy="{at_y(ratio):.1f}"'
    return f'<circle {at} r="3" fill="{fill}" stroke="{colour}" stroke-width="1.4"/>'


def _text(
    x: float,
    y: float,
    text: str,
    colour: str = "#333",
    *,
    anchor: str = "start",
    size: int = 12,
    is_bold: bool = False,
) -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" '
        f'font-size="{size}"{weight}>{escape(text)}</text>'
    )
