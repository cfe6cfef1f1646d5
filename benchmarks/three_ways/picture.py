"""The points as an SVG: how much faster heterogeneous is, over the width of the dense part."""

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from ways import Point, Way

WIDTH, HEIGHT = 210, 150  # of a panel
LEFT, TOP, GAP = 60, 50, 26
LOWEST, HIGHEST = 0.1, 100.0
PAPER = {Way.CPU_ONLY: 3.3, Way.GPU_ONLY: 2.1}
COLOURS = {Way.CPU_ONLY: "#1f6fb4", Way.GPU_ONLY: "#d9730d"}


def draw(points: Sequence[Point]) -> str:
    """Returns panels of rows and batch; in each, lines over the width, on logarithmic axes."""
    columns = list(dict.fromkeys((point.rows, point.cores) for point in points))
    batches = sorted({point.batch for point in points})
    widths = sorted({point.width for point in points})
    size = LEFT + len(columns) * (WIDTH + GAP), TOP + len(batches) * (HEIGHT + GAP) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{size[0]}" height="{size[1]}" fill="white"/>',
        _text(LEFT, 16, "heterogeneous over CPU-only", COLOURS[Way.CPU_ONLY]),
        _text(LEFT + 190, 16, "over GPU-only", COLOURS[Way.GPU_ONLY]),
        _text(
            LEFT + 290,
            16,
            "lines: predicted; dots: simulated; dashes: the paper's 3.3 and 2.1; grey: no gain; "
            "cross: GPU-only does not fit",
        ),
    ]
    for column, (rows, cores) in enumerate(columns):
        x = LEFT + column * (WIDTH + GAP)
        parts.append(_text(x, TOP - 12, f"2 tables of {rows:.0e} rows, GPU hosts of {cores} cores"))
        for row, batch in enumerate(batches):
            y = TOP + row * (HEIGHT + GAP)
            there = [p for p in points if (p.rows, p.cores, p.batch) == (rows, cores, batch)]
            parts += _panel(x, y, sorted(there, key=lambda p: p.width), widths)
            if column == 0:
                parts.append(_text(4, y + HEIGHT / 2, f"batch {batch}"))
    parts.append(_text(LEFT, size[1] - 14, "width of the hidden layers"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(x: float, y: float, points: Sequence[Point], widths: Sequence[int]) -> Iterator[str]:
    def at_x(width: float) -> float:
        if len(widths) == 1:
            return x + WIDTH / 2
        share = math.log(width / widths[0]) / math.log(widths[-1] / widths[0])
        return x + 8 + (WIDTH - 16) * share

    def at_y(ratio: float) -> float:
        ratio = min(max(ratio, LOWEST), HIGHEST)
        return y + HEIGHT * (1 - math.log(ratio / LOWEST) / math.log(HIGHEST / LOWEST))

    below = at_y(1.0)
    height = y + HEIGHT - below
    yield f'<rect x="{x}" y="{below:.1f}" width="{WIDTH}" height="{height:.1f}" fill="#eee"/>'
    yield f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>'
    for tick in (0.1, 1, 10, 100):
        yield _text(x - 3, at_y(tick) + 4, f"{tick:g}", anchor="end", size=9)
    for width in widths:
        yield _text(at_x(width), y + HEIGHT + 11, str(width), anchor="middle", size=9)
    for way, paper in PAPER.items():
        colour = COLOURS[way]
        yield (
            f'<line x1="{x}" x2="{x + WIDTH}" y1="{at_y(paper):.1f}" y2="{at_y(paper):.1f}" '
            f'stroke="{colour}" stroke-dasharray="4 3" stroke-width="0.8"/>'
        )
        path = [(p.width, ratio) for p in points if (ratio := p.over(way)) is not None]
        if len(path) > 1:
            line = " ".join(f"{at_x(w):.1f},{at_y(r):.1f}" for w, r in path)
            yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        for point in points:
            ratio = point.over(way, is_simulated=True)
            where = at_x(point.width)
            if ratio is not None:
                at = f'cx="{where:.1f}" cy="{at_y(ratio):.1f}"'
                yield f'<circle {at} r="2.6" fill="{colour}"/>'
            elif point.found[way].plan is None:
                yield _text(where, y + 12, "x", colour, anchor="middle")


def _text(
    x: float, y: float, text: str, colour: str = "#333", *, anchor: str = "start", size: int = 11
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
