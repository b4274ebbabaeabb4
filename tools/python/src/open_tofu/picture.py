"""Pictures as SVG, without other packages: a machine under load, and curves.

The colours are those of `tofu view` and `tofu topo`.
"""

from __future__ import annotations

from html import escape
from typing import Dict, Iterable, List, Mapping, Sequence, Tuple

from .model import Coords, Info, LinkLoad

LOADS = ("#7ad151", "#22a884", "#2a788e", "#414487", "#440154")
"""From the least load to the most: steps of viridis, which also differ in brightness."""

IDLE = "#b9c1cb"
DOWN = "#d55e00"
NODE = "#16191d"
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

FONT = 'font-family="sans-serif" font-size="12" fill="#16191d"'


class Picture:
    """An SVG document, which notebooks show."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str) -> None:
        """Writes it to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)


def rate(bytes_per_s: float) -> str:
    """A rate in few characters."""
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if bytes_per_s < 999.5:
            return f"{bytes_per_s:.3g} {unit}"
        bytes_per_s /= 1000
    return f"{bytes_per_s:.3g} TB/s"


def load_colour(load: float, most: float) -> str:
    """The colour of a load, of five between none and the most."""
    if load <= 0 or most <= 0:
        return IDLE
    step = min(len(LOADS) - 1, int(load / most * len(LOADS)))
    return LOADS[step]


def _place(at: Coords, lengths: Coords) -> Tuple[float, float]:
    """A node's place: B to the right, A up, C aslant; units on a grid of X and Y, with Z aslant."""
    x, y, z, a, b, c = at
    unit = (150.0 * lengths[4] + 110, 150.0 * lengths[3] + 90)
    slant = (55.0, -38.0)
    left = x * (unit[0] + z * 0) + z * (lengths[5] * slant[0] + 40) + b * 150 + c * slant[0]
    up = y * unit[1] - z * 30 - a * 150 + c * slant[1]
    return left, up


def machine_under_load(
    machine: Info, loads: Iterable[LinkLoad], down: Iterable[Mapping[str, object]] = ()
) -> Picture:
    """Draws the nodes and the load of each link: the greater one of its two directions."""
    by_link: Dict[Tuple[Coords, Coords, str], float] = {}
    for load in loads:
        if load.to is not None:
            ends = sorted((load.at, load.to))
            key = (ends[0], ends[1], load.port[0])
            by_link[key] = max(by_link.get(key, 0.0), load.bytes_per_s)
    at_of = {node.index: node.at for node in machine.nodes}
    broken = set()
    for link in down:
        at, port = at_of.get(link["node"]), str(link["port"])  # type: ignore[call-overload]
        to = machine.neighbor(at, port) if at is not None else None
        if at is not None and to is not None:
            ends = sorted((at, to))
            broken.add((ends[0], ends[1], port[0]))
    lengths = machine.lengths
    places = {node.at: _place(node.at, lengths) for node in machine.nodes}
    least = [min((p[i] for p in places.values()), default=0.0) for i in (0, 1)]
    size = [max((p[i] for p in places.values()), default=0.0) - least[i] + 120 for i in (0, 1)]
    legend = 190
    width, height = size[0] + legend, max(size[1] + 10, 220)
    most = max(by_link.values(), default=0.0)
    parts = [_head(width, height, "A machine under load")]
    for (one, other, axis), load_now in sorted(by_link.items(), key=lambda item: item[1]):
        if one not in places or other not in places:
            continue
        (x0, y0), (x1, y1) = ((p[0] - least[0] + 50, p[1] - least[1] + 60) for p in (
            places[one], places[other]))
        key = (one, other, axis)
        colour = DOWN if key in broken else load_colour(load_now, most)
        dash = ' stroke-dasharray="6 5"' if key in broken else ""
        bend = 0.18 if _wraps(one, other) else 0.0
        mx, my = (x0 + x1) / 2 + (y1 - y0) * bend, (y0 + y1) / 2 - (x1 - x0) * bend
        wide = 1.5 if load_now <= 0 else 2 + 3 * load_now / most
        title = f"{one} to {other}, {axis}: {rate(load_now)}"
        parts.append(
            f'<path d="M{x0:.1f} {y0:.1f}Q{mx:.1f} {my:.1f} {x1:.1f} {y1:.1f}" fill="none" '
            f'stroke="{colour}" stroke-width="{wide:.1f}"{dash}><title>{title}</title></path>'
        )
    for node in machine.nodes:
        x, y = places[node.at][0] - least[0] + 50, places[node.at][1] - least[1] + 60
        colour = DOWN if node.down else NODE
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}">'
            f"<title>{escape(node.name)}: {escape(node.state)}</title></circle>"
            f'<text x="{x + 8:.1f}" y="{y + 15:.1f}" {FONT}>{node.index}</text>'
        )
    parts += _legend(size[0] + 20, most)
    return Picture("".join(parts) + "</svg>")


def _wraps(one: Coords, other: Coords) -> bool:
    return max(abs(a - b) for a, b in zip(one, other)) > 1


def _legend(x: float, most: float) -> List[str]:
    rows = [(IDLE, "no traffic")]
    for step, colour in enumerate(LOADS):
        rows.append((colour, f"up to {rate(most * (step + 1) / len(LOADS))}"))
    rows.append((DOWN, "link or node down"))
    parts = [f'<text x="{x:.1f}" y="24" {FONT} font-weight="bold">Load of a link</text>']
    for row, (colour, text) in enumerate(rows):
        y = 44 + 20 * row
        parts.append(
            f'<rect x="{x:.1f}" y="{y - 7}" width="24" height="5" fill="{colour}"/>'
            f'<text x="{x + 32:.1f}" y="{y}" {FONT}>{escape(text)}</text>'
        )
    return parts


def _head(width: float, height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img"><title>{escape(title)}</title>'
        '<rect width="100%" height="100%" fill="#ffffff"/>'
    )


def curves(
    lines: Mapping[str, Sequence[Tuple[float, float]]], *, x: str, y: str, title: str = ""
) -> Picture:
    """Draws curves over a logarithmic X axis, with names and values on both axes."""
    import math

    points = [point for line in lines.values() for point in line]
    if not points or min(point[0] for point in points) <= 0:
        raise ValueError("curves need points with X above 0")
    low, high = (math.log10(pick(p[0] for p in points)) for pick in (min, max))
    top = max(p[1] for p in points) or 1.0
    left, width, up, height = 80.0, 520.0, 40.0, 300.0

    def place(point: Tuple[float, float]) -> Tuple[float, float]:
        share = (math.log10(point[0]) - low) / ((high - low) or 1.0)
        return left + width * share, up + height * (1 - point[1] / top)

    parts = [_head(left + width + 170, up + height + 60, title or y)]
    parts.append(f'<text x="{left}" y="22" {FONT} font-weight="bold">{escape(title)}</text>')
    for step in range(5):
        value = top * step / 4
        at = place((10**low, value))[1]
        parts.append(
            f'<path d="M{left} {at:.1f}h{width}" stroke="#d4d9e0"/>'
            f'<text x="{left - 8}" y="{at + 4:.1f}" {FONT} text-anchor="end">{value:.3g}</text>'
        )
    for value in sorted({point[0] for point in points}):
        at = place((value, 0.0))[0]
        parts.append(
            f'<text x="{at:.1f}" y="{up + height + 18}" {FONT} text-anchor="middle">'
            f"{value:g}</text>"
        )
    parts.append(
        f'<text x="{left + width / 2}" y="{up + height + 42}" {FONT} text-anchor="middle">'
        f"{escape(x)}</text>"
        f'<text transform="translate(18 {up + height / 2}) rotate(-90)" {FONT} '
        f'text-anchor="middle">{escape(y)}</text>'
    )
    for number, (name, line) in enumerate(lines.items()):
        colour = CURVES[number % len(CURVES)]
        way = " ".join(f"{px:.1f},{py:.1f}" for px, py in map(place, line))
        at = up + 14 + 20 * number
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>'
            for px, py in map(place, line)
        ]
        parts.append(
            f'<path d="M{left + width + 16} {at}h20" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{left + width + 42}" y="{at + 4}" {FONT}>{escape(name)}</text>'
        )
    return Picture("".join(parts) + "</svg>")
