"""Jobs of a server that generates nothing. Tests or a clock decide what happens to them, and the native API reports it."""
import itertools
import json
import struct
import threading
import time
import zlib

ENDED = ("succeeded", "failed", "cancelled", "expired")
FIELDS = [
    {"name": "prompt", "type": "texts", "group": "prompt", "default": None, "help": "Text prompt; several prompts give several images or videos"},
    {"name": "negative_prompt", "type": "texts", "group": "prompt", "default": None, "help": "Negative prompt: one for all, or one per prompt (repeat the option) [none]"},
    {"name": "clean_caption", "type": "flag", "group": "prompt", "default": True, "help": "Remove links, markup and other web-page residue from prompts [on if the model supports it]"},
    {"name": "height", "type": "integer", "group": "image", "default": 512, "minimum": 1, "maximum": 2048, "unit": "PIXELS", "help": "Image height: a multiple of 16 [the model's]"},
    {"name": "width", "type": "integer", "group": "image", "default": 512, "minimum": 1, "maximum": 2048, "unit": "PIXELS", "help": "Image width: a multiple of 16 [the model's]"},
    {"name": "seed", "type": "seed", "group": "image", "default": None, "help": "Seed of the random numbers [random]"},
    {"name": "num_images_per_prompt", "type": "integer", "group": "image", "default": 1, "minimum": 1, "maximum": 8, "help": "Number of images per prompt [1]"},
    {"name": "num_inference_steps", "type": "integer", "group": "sampling", "default": 20, "minimum": 1, "maximum": 150, "help": "Number of denoising steps [20]"},
    {"name": "guidance_scale", "type": "number", "group": "sampling", "default": 4.5, "minimum": 0, "help": "Guidance scale: higher values follow the prompt more closely, 1 turns guidance off [4.5]"},
    {"name": "scheduler", "type": "text", "group": "sampling", "default": None, "suggestions": ["ddim", "dpm++", "euler", "euler-a", "heun", "unipc"], "help": "Sampler: a short name, or a class name of diffusers [the model's]"},
    {"name": "scheduler_option", "type": "texts", "group": "sampling", "default": None, "help": "Option of the sampler's class in diffusers, such as use_karras_sigmas=true; the value is JSON or a word (repeat the option) [the model's]"},
    {"name": "eta", "type": "number", "group": "sampling", "default": 0, "minimum": 0, "maximum": 1, "help": "DDIM and TCD: amount of noise added in each step [0]"},
    {"name": "max_sequence_length", "type": "integer", "group": "prompt", "default": 300, "minimum": 1, "maximum": 4096, "help": "Maximum prompt length in tokens [the model's]"},
    {"name": "vae_tiling", "type": "flag", "group": "memory", "default": False, "help": "Decode in overlapping tiles: less memory, slightly different images"},
]


def png(width, height, seed, texts=()):
    """A picture of soft colours, with texts as `tessera generate` writes them."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))]
    for keyword, text in texts:
        try:
            parts.append(chunk(b"tEXt", keyword.encode() + b"\0" + text.encode("latin-1")))
        except UnicodeEncodeError:
            parts.append(chunk(b"iTXt", keyword.encode() + b"\0\0\0\0\0" + text.encode()))
    a, b = [[zlib.crc32(f"{seed} {j} {k}".encode()) % 170 + 60 for k in range(3)] for j in range(2)]
    lines = []
    for y in range(height):
        left = [int(p + (q - p) * y / height) for p, q in zip(a, b)]
        half = width // 2
        lines.append(b"\0" + bytes(left) * half + bytes(255 - v // 2 for v in left) * (width - half))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IDAT", zlib.compress(b"".join(lines), 1)) + chunk(b"IEND", b"")


class Jobs:
    """All under one lock; `changed` wakes the streams."""

    def __init__(self, video=None):
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.jobs, self.events, self.files, self.previews, self.keys = {}, {}, {}, {}, {}
        self.numbers, self.video, self.epoch = itertools.count(1), video, 0

    def tell(self, job, name, data):
        self.events[job["id"]].append((next(self.numbers), name, data))
        self.changed.notify_all()

    def accept(self, request, owner, key):
        with self.lock:
            if (owner, key) in self.keys and key:
                return self.jobs[self.keys[owner, key]]
            number = next(self.numbers)
            defaults = {field["name"]: field["default"] for field in FIELDS if field["default"] is not None}
            filled = {"seed": number * 1000, **defaults, **request}
            filled["prompt"] = [filled["prompt"]]
            ahead = sum(job["state"] == "queued" for job in self.jobs.values())
            job = {"id": f"{number:032x}", "object": "job", "state": "queued", "created": time.time(), "started": None, "ended": None,
                   "expires": None, "place": {"jobs_ahead": ahead, "begins_in": 12.0 * (ahead + 1), "ends_in": 12.0 * (ahead + 2)}, "step": 0,
                   "steps": filled["num_inference_steps"], "attempts": 0, "request": filled, "seeds": [], "results": [], "error": None,
                   "warnings": [], "preview": None}
            self.jobs[job["id"]], self.events[job["id"]], self.keys[owner, key] = job, [], job["id"]
            job["owner"] = owner
            self.tell(job, "state", self.view(job))
            return job

    def view(self, job):
        return {name: value for name, value in job.items() if name != "owner"}

    def advance(self, job, step):
        """A job that waits begins, and stands at a step, with a preview of it."""
        with self.lock:
            if job["state"] == "queued":
                job.update(state="running", started=time.time(), place=None)
                self.tell(job, "state", self.view(job))
            if step == 0:
                return
            job["step"] = step
            self.tell(job, "step", {"step": step, "steps": job["steps"]})
            request = job["request"]
            self.previews[job["id"]] = png(request["width"] // 8, request["height"] // 8, request["seed"] + step)
            job["preview"] = f"/v1/jobs/{job['id']}/preview"
            self.tell(job, "preview", {"index": 0, "step": step, "url": job["preview"]})

    def finish(self, job):
        with self.lock:
            request, files = job["request"], []
            for index in range(request["num_images_per_prompt"]):
                settings = {"model": "shapes", **request, "image_index": index}
                texts = [("parameters", request["prompt"][0]), ("tessera", json.dumps(settings, ensure_ascii=False)), ("Software", "Tessera 0")]
                files.append(self.video or png(request["width"], request["height"], request["seed"] + index, texts))
            kind = "video/mp4" if self.video else "image/png"
            self.files[job["id"]] = files
            results = [{"url": f"/v1/jobs/{job['id']}/results/{i}", "content_type": kind, "bytes": len(data), "width": request["width"],
                        "height": request["height"]} for i, data in enumerate(files)]
            job.update(state="succeeded", ended=time.time(), expires=time.time() + 86400, step=job["steps"], results=results, preview=None,
                       seeds=[request["seed"]] * len(files))
            self.tell(job, "state", self.view(job))

    def warn(self, job, text):
        with self.lock:
            job["warnings"] = job["warnings"] + [text]
            self.tell(job, "state", self.view(job))

    def end(self, job, state, message, code="failed"):
        with self.lock:
            job.update(state=state, ended=time.time(), error={"code": code, "message": message}, place=None, preview=None)
            self.tell(job, "error", job["error"])
            self.tell(job, "state", self.view(job))

    def delete(self, job):
        """Cancels a job; one that has ended is removed."""
        with self.lock:
            if job["state"] in ENDED:
                for table in (self.jobs, self.events, self.files, self.previews):
                    table.pop(job["id"], None)
            else:
                self.end(job, "cancelled", "cancelled by its client", "cancelled")

    def cut_streams(self):
        with self.lock:
            self.epoch += 1
            self.changed.notify_all()

    def run_by_clock(self, seconds):
        """Runs jobs one after the other for ever, a step in so many seconds."""
        while True:
            time.sleep(seconds)
            with self.lock:
                running = next((job for job in self.jobs.values() if job["state"] not in ENDED), None)
                if running is None:
                    continue
                if running["step"] == running["steps"]:
                    self.finish(running)
                else:
                    self.advance(running, running["step"] + 1)
