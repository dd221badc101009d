#!/usr/bin/env python3
"""Draws memory over time, the usual way and with lowtide, from the JSON of `lowtide demo`.

    lowtide demo --json --hold 200 > demo.json
    picture.py demo.json docs/memory.svg [--commit COMMIT]

One panel per scenario, for four of them unless --scenarios names others. The lines are the samples of the demo: the device's own numbers. The picture names
the device, the commit and the date. Its colours are readable on a light and on a dark page.
"""
import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

MIB, GIB = 2**20, 2**30
WAYS = (("today", "the usual way", "#d9742b"), ("lowtide", "with lowtide", "#2f8fd3"))
ABOUT = {
    "stages": "four models, one after another",
    "between tasks": "three tasks with large buffers",
    "shutdown": "a wrapper keeps the weights alive",
    "idle": "a server is idle, then works again",
    "updates": "200 weight updates",
}
TEXT = "#7a828c"  # contrast of about 4 on white and on black
GRID = "#7a828c"
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 2, 400, 110
LEFT, TOP, GAP_X, GAP_Y = 8, 84, 24, 62


def size(count):
    """A size with few digits: 520 MiB, 10.5 GiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def lines_of(scenario):
    """The samples of each way as (seconds, bytes), until its last state ends."""
    lines = {}
    for way, _, _ in WAYS:
        until = max(state["until_s"] for state in scenario["states"] if state["way"] == way)
        own = [s for s in scenario["samples"] if s["way"] == way and s["at_s"] <= until]
        if not own:
            sys.exit(f"picture: {scenario['name']} has no samples of {way}; run the demo with --json")
        start = own[0]["at_s"]
        line = [(sample["at_s"] - start, sample["bytes"]) for sample in own]
        lines[way] = line + [(until - start, line[-1][1])]
    return lines


def thinned(line, step_s):
    """The line with at most the first, least, most and last of each step, so that the file stays small."""
    steps = {}
    for point in line:
        steps.setdefault(int(point[0] / step_s), []).append(point)
    for points in steps.values():
        least, most = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
        yield from sorted({points[0], least, most, points[-1]})


def panel(scenario, x, y, floor):
    """One scenario: a title, both lines, the scale, and what is left at the end."""
    lines = lines_of(scenario)
    end_s = max(line[-1][0] for line in lines.values())
    most = max(bytes_ for line in lines.values() for _, bytes_ in line)
    across = lambda seconds: x + seconds / end_s * PANEL_WIDTH
    up = lambda bytes_: y + PANEL_HEIGHT * (1 - bytes_ / most)
    out = [f'<text x="{x}" y="{y - 8}"><tspan class="name">{escape(scenario["name"])}</tspan>'
           f'  {escape(ABOUT[scenario["name"]])}</text>',
           f'<path d="M{x} {y + PANEL_HEIGHT}h{PANEL_WIDTH}" stroke="{GRID}"/>']
    if floor:
        out.append(f'<path d="M{x} {up(floor):.1f}h{PANEL_WIDTH}" stroke="{GRID}" stroke-dasharray="2 3"/>')
    for way, _, colour in WAYS:
        points = list(thinned(lines[way], end_s / PANEL_WIDTH))
        path = "".join(f"{'L' if n else 'M'}{across(s):.1f} {up(b):.1f}" for n, (s, b) in enumerate(points))
        base = up(0)
        out.append(f'<path d="{path}V{base:.1f}H{across(points[0][0]):.1f}Z" fill="{colour}" fill-opacity=".16"/>')
        out.append(f'<path d="{path}" stroke="{colour}" stroke-width="2" stroke-linejoin="round" fill="none"/>')
    out.append(f'<text x="{x}" y="{y + PANEL_HEIGHT + 15}">0 s</text>')
    out.append(f'<text x="{x + PANEL_WIDTH}" y="{y + PANEL_HEIGHT + 15}" text-anchor="end">{end_s:.1f} s</text>')
    peaks = [(way, colour, scenario["today"] if way == "today" else scenario) for way, _, colour in WAYS]
    words = "peak → left:  " + "".join(
        f'<tspan fill="{colour}">{size(numbers["peak_bytes"])} → {size(numbers["after_bytes"])}</tspan>'
        + (" · " if way == "today" else "")
        for way, colour, numbers in peaks)
    out.append(f'<text x="{x + PANEL_WIDTH / 2}" y="{y + PANEL_HEIGHT + 15}" text-anchor="middle">{words}</text>')
    return "\n".join(out)


def legend(demo, commit, x, y):
    """What the colours mean, and what the picture is of."""
    first = min(sample["at_s"] for scenario in demo["scenarios"] for sample in scenario["samples"])
    date = datetime.datetime.fromtimestamp(first, datetime.timezone.utc).date()
    out = []
    for column, (_, words, colour) in enumerate(WAYS):
        at = x + column * 150
        out.append(f'<path d="M{at} {y}h24" stroke="{colour}" stroke-width="3"/>')
        out.append(f'<text x="{at + 32}" y="{y + 4}" class="name">{words}</text>')
    floor = f"; dotted: a bare context, {size(demo['floor_bytes'])}" if demo["floor_bytes"] else ""
    told = f"{demo['device']}, {demo['name']}, commit {commit}, {date}{floor}"
    out.append(f'<text x="{x}" y="{y + 26}">Device memory in use, by the device itself. {escape(told)}</text>')
    return "\n".join(out)


def draw(demo, commit, names):
    scenarios = [scenario for scenario in demo["scenarios"] if scenario["name"] in names]
    cells = [(LEFT + (n % COLUMNS) * (PANEL_WIDTH + GAP_X), TOP + (n // COLUMNS) * (PANEL_HEIGHT + GAP_Y))
             for n in range(len(scenarios))]
    width = LEFT * 2 + COLUMNS * PANEL_WIDTH + (COLUMNS - 1) * GAP_X
    height = cells[-1][1] + PANEL_HEIGHT + 26
    words = "; ".join(f"{s['name']}: {size(s['today']['after_bytes'])} left the usual way, "
                      f"{size(s['after_bytes'])} with lowtide" for s in scenarios)
    body = [legend(demo, commit, LEFT, 16)]
    body += [panel(scenario, *cell, demo["floor_bytes"]) for scenario, cell in zip(scenarios, cells)]
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>Device memory over time</title>
<desc>{escape(words)}</desc>
<style>text {{ font: 12px system-ui, sans-serif; fill: {TEXT} }} .name {{ font-weight: 600; font-size: 13px }}</style>
{chr(10).join(body)}
</svg>
"""


def current_commit():
    git = lambda *arguments: subprocess.run(("git", *arguments), capture_output=True, text=True, check=True).stdout.strip()
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if git("status", "--porcelain") else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="the JSON of the demo, or what watch_demo.py --out wrote")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--scenarios", nargs="+", choices=ABOUT, default=["stages", "between tasks", "shutdown", "idle"])
    parser.add_argument("--commit", help="the commit of the program that ran; by default that of this folder")
    options = parser.parse_args()
    demo = json.loads(options.demo.read_text())
    demo = demo.get("demo", demo)
    options.picture.write_text(draw(demo, options.commit or current_commit(), options.scenarios))


if __name__ == "__main__":
    main()
