"""Opens pages of `tessera analyze report` in headless Chromium, wide and narrow, and looks for what a reader would stumble over: errors,
anything loaded from elsewhere, a page wider than its window, plots without marks, texts that leave their plot or cover each other. It
prints a line of JSON for each page and width, and exits with 1 if it found anything.

    python3 -m tools.browser.open_report report.html
"""
import argparse
import json
import pathlib
import queue
import sys

from tools.browser.headless import browser, next_seen, serve

WIDTHS = (1200, 480)
PAGE = """<!doctype html><body style="margin:0"><script>
function overlap(a, b) {
  const width = Math.min(a.right, b.right) - Math.max(a.left, b.left), height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  return width > 1 && height > 1 ? width * height / Math.min(a.width * a.height, b.width * b.height) : 0;
}

function lookAt(page, width) {
  const found = [], plots = [...page.querySelectorAll('svg')];
  if (page.documentElement.scrollWidth > width) found.push(`is ${page.documentElement.scrollWidth} pixels wide`);
  plots.forEach((plot, i) => {
    const frame = plot.getBoundingClientRect(), texts = [...plot.querySelectorAll('text')];
    const marks = [...plot.querySelectorAll('rect, path, polyline, polygon, circle, line')].filter(mark => {
      const box = mark.getBoundingClientRect();
      return box.width + box.height > 2;
    });
    if (frame.width < 100 || frame.height < 10 || marks.length === 0) found.push(`plot ${i} is empty`);
    const boxes = texts.map(text => text.getBoundingClientRect());
    texts.forEach((text, j) => {
      const box = boxes[j];
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.push(`plot ${i}: "${text.textContent}" leaves it`);
      const other = boxes.findIndex((b, k) => k > j && overlap(box, b) > 0.2);
      if (other >= 0) found.push(`plot ${i}: "${text.textContent}" and "${texts[other].textContent}" cover each other`);
    });
  });
  return {plots: plots.length, tables: page.querySelectorAll('table').length, found};
}

async function main() {
  for (const {url, width} of await (await fetch('/job')).json()) {
    const frame = document.createElement('iframe'), errors = [];
    Object.assign(frame.style, {width: width + 'px', height: '900px', border: 0});
    const loaded = new Promise(done => frame.addEventListener('load', done));
    frame.src = url;
    document.body.replaceChildren(frame);
    frame.contentWindow.addEventListener('error', event => errors.push(String(event.message)));
    await loaded;
    const seen = lookAt(frame.contentDocument, frame.contentDocument.documentElement.clientWidth);
    await fetch('/seen', {method: 'POST', body: JSON.stringify({...seen, found: [...errors, ...seen.found]})});
  }
}
main();
</script>"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    parser.add_argument("--browser", default="chromium")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for a page")
    args = parser.parse_args()
    jobs = [{"url": f"/page/{i}", "width": width} for i in range(len(args.pages)) for width in WIDTHS]
    kind = "text/html; charset=utf-8"
    answers = {"/": (PAGE.encode(), kind), "/job": (json.dumps(jobs).encode(), "application/json"),
               **{f"/page/{i}": (path.read_bytes(), kind) for i, path in enumerate(args.pages)}}
    seen, good = queue.Queue(), True
    with browser(args.browser, serve(answers, seen)):
        for job in jobs:
            path, missing = args.pages[int(job["url"].rsplit("/", 1)[1])], []
            while "missing" in (found := next_seen(seen, args.timeout, path)):
                missing.append(f"loads {found['missing']}")
            found["found"] = missing + found["found"]
            good &= found["plots"] > 0 and not found["found"]
            print(json.dumps({"page": str(path), "width": job["width"], **found}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
