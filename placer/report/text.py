"""Reports as blocks of text and tables, written plainly, or with rich on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from placer.scenario.quantity import SIZE


@dataclass(frozen=True)
class Table:
    """Rows under a header. The first ``num_labels`` columns hold names, the others figures (aligned right)."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_labels: int = 1


Block = str | Table


def to_text(blocks: Sequence[Block]) -> str:
    """Plain text, one empty line between blocks, no newline at the end."""
    return "\n\n".join(block if isinstance(block, str) else _to_lines(block) for block in blocks)


def write_report(blocks: Sequence[Block], stream: TextIO) -> None:
    """Write a report: plain text to a file or pipe, rich tables to a terminal (which heed NO_COLOR)."""
    if not stream.isatty():
        stream.write(to_text(blocks) + "\n")
        return
    from rich.console import Console  # noqa: PLC0415  slow to import, and only terminals need it
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=stream, highlight=False)
    for index, block in enumerate(blocks):
        if index:
            console.print()
        if isinstance(block, str):
            console.print(Text(block))
            continue
        table = RichTable(box=None, pad_edge=False, header_style="bold")
        for column, title in enumerate(block.header):
            table.add_column(Text(title), justify="left" if column < block.num_labels else "right")
        for row in block.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)


def format_bytes(value: float, *, digits: int = 3) -> str:
    """``1374389534720`` → ``1.37 TB``; 0 → ``0``."""
    return SIZE.format(value, digits=digits) if value else "0"


def _to_lines(table: Table) -> str:
    rows = [table.header, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < table.num_labels else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
