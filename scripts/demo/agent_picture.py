"""Held-out success over episodes as a small SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT, MARGIN_LEFT, MARGIN_TOP = 480, 240, 48, 28


def picture(rows: Sequence[dict[str, Any]], task: str) -> str:
    most = max(row["episodes"] for row in rows) or 1

    def place(row: dict[str, Any]) -> tuple[float, float]:
        x = MARGIN_LEFT + row["episodes"] / most * (WIDTH - MARGIN_LEFT - 16)
        return round(x, 1), round(MARGIN_TOP + (1 - row["held_out"]) * (HEIGHT - MARGIN_TOP - 36), 1)

    points = [place(row) for row in rows]
    lines = [
        f'<polyline fill="none" stroke="#2563eb" stroke-width="2" points="{" ".join(f"{x},{y}" for x, y in points)}"/>'
    ]
    lines += [f'<circle cx="{x}" cy="{y}" r="3" fill="#2563eb"/>' for x, y in points]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = MARGIN_TOP + (1 - share) * (HEIGHT - MARGIN_TOP - 36)
        lines.append(f'<line x1="{MARGIN_LEFT}" x2="{WIDTH - 16}" y1="{y}" y2="{y}" stroke="#8884" stroke-width="1"/>')
        lines.append(f'<text x="{MARGIN_LEFT - 6}" y="{y + 4}" text-anchor="end">{share:g}</text>')
    for (x, _), row in zip(points, rows, strict=True):
        lines.append(f'<text x="{x}" y="{HEIGHT - 20}" text-anchor="middle">{row["episodes"]}</text>')
    lines.append(f'<text x="{MARGIN_LEFT}" y="16">{task}: held-out success over episodes</text>')
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="11" fill="#64748b">\n{body}\n</svg>\n'
    )
