"""Plays .mp4, .webm and .gif files in headless Chromium and prints a line of JSON for each: its size, its seconds, how many frames were
decoded while it played, and how many were found when each was looked for by its time. It exits with 1 if a file does not play, or if
these numbers differ.

    python3 -m tools.browser.play_video [--save FOLDER] a.mp4 b.webm

A page from a local server plays the files and sends back what it sees. H.264 needs a browser that has it, as Debian's Chromium does.
"""
import argparse
import base64
import json
import pathlib
import queue
import sys

from tools.browser.headless import browser, next_seen, serve

TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
PAGE = """<!doctype html><body><script>
function picture(image, width, height) {
  const canvas = Object.assign(document.createElement('canvas'), {width, height});
  canvas.getContext('2d').drawImage(image, 0, 0);
  return canvas.toDataURL('image/png');
}

const wanted = frames => [0, frames >> 1, frames - 1];

async function playGif(blob) {
  const decoder = new ImageDecoder({data: await blob.arrayBuffer(), type: blob.type});
  await Promise.all([decoder.completed, decoder.tracks.ready]);
  const frames = decoder.tracks.selectedTrack.frameCount, times = [], pictures = {};
  let seconds = 0, width, height;
  for (let i = 0; i < frames; i++) {
    const {image} = await decoder.decode({frameIndex: i});
    [width, height] = [image.displayWidth, image.displayHeight];
    times.push(seconds);
    seconds += image.duration / 1e6;
    if (wanted(frames).includes(i)) pictures[i] = picture(image, width, height);
    image.close();
  }
  return {width, height, seconds: +seconds.toFixed(6), frames, times, pictures};
}

async function playVideo(blob) {
  const video = Object.assign(document.createElement('video'), {muted: true});
  document.body.append(video);
  const failed = new Promise((_, reject) => video.addEventListener('error', () => reject(video.error.message || 'not supported')));
  const event = name => Promise.race([failed, new Promise(done => video.addEventListener(name, done, {once: true}))]);
  const ended = event('ended');
  video.src = URL.createObjectURL(blob);
  video.play();
  await ended;
  const frames = video.getVideoPlaybackQuality().totalVideoFrames, times = [], pictures = {};
  for (let i = 0; i < frames; i++) {
    const shown = new Promise(done => video.requestVideoFrameCallback((_, frame) => done(frame.mediaTime)));
    video.currentTime = (i + 0.5) * video.duration / frames;
    times.push(await Promise.race([failed, shown]));
    if (wanted(frames).includes(i)) pictures[i] = picture(video, video.videoWidth, video.videoHeight);
  }
  return {width: video.videoWidth, height: video.videoHeight, seconds: video.duration, frames, times, pictures};
}

async function main() {
  const types = await (await fetch('/job')).json();
  for (let i = 0; i < types.length; i++) {
    let seen;
    try {
      const blob = new Blob([await (await fetch('/file/' + i)).arrayBuffer()], {type: types[i]});
      seen = await (types[i] === 'image/gif' ? playGif : playVideo)(blob);
    } catch (error) {
      seen = {error: String(error)};
    }
    await fetch('/seen', {method: 'POST', body: JSON.stringify(seen)});
  }
}
main();
</script>"""


def answers_for(files):
    job = json.dumps([TYPES[path.suffix.lower()] for path in files])
    return {"/": (PAGE.encode(), "text/html; charset=utf-8"), "/job": (job.encode(), "application/json"),
            **{f"/file/{i}": (path.read_bytes(), "application/octet-stream") for i, path in enumerate(files)}}


def save_pictures(folder, path, pictures):
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in pictures.items():
        (folder / f"{path.name}-{int(number):04}.png").write_bytes(base64.b64decode(data.split(",", 1)[1]))


def count_found(times):
    """Returns how many frames follow each other in time, from the first on."""
    return bool(times) + sum(before < after for before, after in zip(times, times[1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--browser", default="chromium")
    parser.add_argument("--save", type=pathlib.Path, metavar="FOLDER", help="save the first frame, one in the middle and the last, as shown")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a file")
    args = parser.parse_args()
    for path in args.files:
        if path.suffix.lower() not in TYPES or not path.is_file():
            parser.error(f"{path} is no {', '.join(TYPES)} file")
    seen, good = queue.Queue(), True
    with browser(args.browser, serve(answers_for(args.files), seen)):
        for path in args.files:
            found = next_seen(seen, args.timeout, path)
            pictures = found.pop("pictures", {})
            if args.save:
                save_pictures(args.save, path, pictures)
            if "times" in found:
                found["found"] = count_found(found.pop("times"))
            good &= found.get("frames", 0) > 0 and found["found"] == found["frames"]
            print(json.dumps({"file": str(path), **found}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
