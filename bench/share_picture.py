#!/usr/bin/env python3
"""Draws the device memory of programs that share a card, from the results of `share.py requests`.

    share_picture.py share.json docs/share.svg --device "cuda:0, NVIDIA H200" --commit COMMIT [--seconds 20]

A band for each program, by NVML's numbers, one above the other; the marks below are requests. The colours are readable
on a light and on a dark page.
"""
import argparse
import datetime
import json
from pathlib import Path
from xml.sax.saxutils import escape

from picture import GRID, LEFT, TEXT, size

COLOURS = ("#d9742b", "#2f8fd3", "#5a9e4b", "#a86fc4")
WIDTH, HEIGHT, TOP, MARKS, EVERY_S = 820, 200, 70, 14, 0.1


def bands(samples, begin, end):
    """Each program's bytes at each moment: what was said of it last."""
    names = sorted({name for _, said in samples for name in said})
    moments, latest, seen, at = [], dict.fromkeys(names, 0), {}, 0
    for step in range(int((end - begin) / EVERY_S) + 1):
        now = begin + step * EVERY_S
        while at < len(samples) and samples[at][0] <= now:
            for name, mib in samples[at][1].items():
                latest[name], seen[name] = mib * 2**20, samples[at][0]
            at += 1
        # A process that NVML lists no more has nothing.
        moments.append((now, [latest[name] if now - seen.get(name, 0) < 1 else 0 for name in names]))
    return names, moments


def draw(part, told, seconds):
    requests = part["requests"]
    begin = requests[0]["at"] - requests[0]["whole_s"] - 0.5
    end = begin + seconds
    names, moments = bands(part["samples"], begin, end)
    most = max(sum(values) for _, values in moments)
    across = lambda when: LEFT + (when - begin) / seconds * WIDTH
    up = lambda bytes_: TOP + HEIGHT * (1 - bytes_ / most)
    body = []
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        top = [(across(now), up(sum(values[: number + 1]))) for now, values in moments]
        low = [(across(now), up(sum(values[:number]))) for now, values in moments]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in top + low[::-1])
        body.append(f'<path d="M{path}Z" fill="{colour}" fill-opacity=".7"/>')
        x = LEFT + number * 130
        body.append(f'<path d="M{x} 16h24" stroke="{colour}" stroke-width="8"/>')
        body.append(f'<text x="{x + 32}" y="20" class="name">{escape(name)}</text>')
    for one in requests:
        ended, colour = one["at"], COLOURS[one["program"] % len(COLOURS)]
        began = ended - one["whole_s"]
        if began >= begin and ended <= end:
            x, y = across(began), TOP + HEIGHT + 4
            width = max(1.5, across(ended) - x)
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{MARKS - 4}" fill="{colour}"/>')
    date = datetime.datetime.fromtimestamp(begin, datetime.timezone.utc).date()
    foot = TOP + HEIGHT + MARKS + 16
    words = f"Device memory of each program, by the driver. {told}, {date}. At most {size(most)} together"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2 * LEFT} {foot + 8}" role="img">
<title>Device memory of programs that take turns</title>
<desc>{escape(words)}; {len(requests)} requests, {part['right']} of them right</desc>
<style>text {{ font: 12px system-ui, sans-serif; fill: {TEXT} }} .name {{ font-weight: 600; font-size: 13px }}</style>
<text x="{LEFT}" y="46">{escape(words)}</text>
{chr(10).join(body)}
<path d="M{LEFT} {TOP + HEIGHT}h{WIDTH}" stroke="{GRID}"/>
<text x="{LEFT}" y="{foot}">0 s; the marks are requests</text>
<text x="{LEFT + WIDTH}" y="{foot}" text-anchor="end">{seconds:.0f} s</text>
</svg>
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what share.py wrote")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--device", required=True, help="the device, for people")
    parser.add_argument("--commit", required=True, help="the commit of the program that ran")
    parser.add_argument("--seconds", type=float, default=20, help="how much of the run is shown")
    options = parser.parse_args()
    part = json.loads(options.results.read_text())["requests"]
    told = f"{options.device}, commit {options.commit}"
    options.picture.write_text(draw(part, told, options.seconds))


if __name__ == "__main__":
    main()
