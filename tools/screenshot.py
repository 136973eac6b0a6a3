#!/usr/bin/env python3
"""Pictures of reports for the documentation.

    tools/screenshot.py report.html report.png [--width 1200] [--dark] [--full]
    flatout report DIR | tools/screenshot.py --terminal - terminal.svg     (or terminal.png)

HTML is rendered by the system's Chromium through Playwright. Terminal text may hold ANSI colours; it
becomes an SVG (or, through Chromium, a PNG) of a terminal window.
"""
import argparse
import html
import pathlib
import re
import shutil
import sys
import unicodedata

COLUMN, ROW, PAD = 8.4, 18, 16
BASIC = {31: "#ff6b6b", 32: "#5fd38d", 33: "#f2c14e", 34: "#6fb1ff", 36: "#5ac8e0", 37: "#e6e8ee"}


def colour_256(n: int) -> str:
    """The RGB colour of an entry of the 256-colour palette (cube and greys)."""
    if n >= 232:
        level = 8 + (n - 232) * 10
        return f"#{level:02x}{level:02x}{level:02x}"
    levels = [0, 95, 135, 175, 215, 255]
    n -= 16
    return "#{:02x}{:02x}{:02x}".format(levels[n // 36], levels[n // 6 % 6], levels[n % 6])


def apply(codes: str, style: dict) -> None:
    """Changes style as the SGR sequence says."""
    numbers = [int(c or 0) for c in codes.split(";")]
    while numbers:
        n = numbers.pop(0)
        if n == 0:
            style.clear()
        elif n == 1:
            style["font-weight"] = "bold"
        elif n == 2:
            style["opacity"] = "0.6"
        elif n in BASIC:
            style["fill"] = BASIC[n]
        elif n == 38 and numbers[:1] == [5]:
            style["fill"] = colour_256(numbers[1])
            numbers = numbers[2:]


def columns(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
               for c in text)


def terminal_svg(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    width = max([80] + [columns(p) for p in plain]) * COLUMN + 2 * PAD
    top = 34
    height = len(lines) * ROW + top + PAD
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
           f'viewBox="0 0 {width:.0f} {height:.0f}">',
           f'<rect width="100%" height="100%" rx="10" fill="#16181d"/>']
    for i, fill in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        out.append(f'<circle cx="{20 + 18 * i}" cy="17" r="5.5" fill="{fill}"/>')
    out.append('<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" '
               'font-size="14" fill="#e6e8ee" xml:space="preserve">')
    for row, line in enumerate(lines):
        style: dict = {}
        column = 0
        for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
            if piece.startswith("\x1b["):
                apply(piece[2:-1], style)
            elif piece.strip():
                attributes = "".join(f' {k}="{v}"' for k, v in style.items())
                lead = len(piece) - len(piece.lstrip())
                x = PAD + (column + lead) * COLUMN
                y = top + row * ROW + 13
                if set(piece.strip()) == {"█"}:  # blocks as boxes: fonts leave seams
                        out.append(f'<rect x="{x:.1f}" y="{y - 13}" height="{ROW - 3}" '
                               f'width="{len(piece.strip()) * COLUMN:.1f}"{attributes}/>')
                else:
                    out.append(f'<text x="{x:.1f}" y="{y}" textLength="{columns(piece.strip()) * COLUMN:.1f}" '
                               f'lengthAdjust="spacing"{attributes}>{html.escape(piece.strip())}</text>')
                column += columns(piece)
            else:
                column += columns(piece)
    out.append("</g></svg>\n")
    return "\n".join(out)


def browser_shot(url: str, target: str, width: int, height: int, dark: bool, full: bool, scale: float) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("screenshot: no Chromium found: install the package chromium")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium)
        page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=scale,
                                color_scheme="dark" if dark else "light")
        page.goto(url)
        page.wait_for_timeout(400)
        page.screenshot(path=target, full_page=full)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="an HTML file; with --terminal a text file or -")
    parser.add_argument("target", help="the picture to write (.png, or .svg with --terminal)")
    parser.add_argument("--terminal", action="store_true")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--scale", type=float, default=2)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--full", action="store_true", help="the whole page, not one screen")
    args = parser.parse_args()
    if not args.terminal:
        browser_shot(pathlib.Path(args.source).resolve().as_uri(), args.target, args.width, args.height, args.dark,
                     args.full, args.scale)
        return
    text = sys.stdin.read() if args.source == "-" else pathlib.Path(args.source).read_text("utf-8")
    svg = terminal_svg(text)
    if args.target.endswith(".svg"):
        pathlib.Path(args.target).write_text(svg, "utf-8")
        return
    import tempfile

    width, height = (int(n) for n in re.search(r'width="(\d+)" height="(\d+)"', svg).groups())
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "terminal.svg")
        source.write_text(svg, "utf-8")
        browser_shot(source.as_uri(), args.target, width, height, False, False, args.scale)


if __name__ == "__main__":
    main()
