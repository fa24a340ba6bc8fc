"""Makes tests/golden/open_sora_request.json: sizes, numbers of frames, prompts and mask strategies of Open-Sora 1.2, and what
tools/reference/open_sora_request.py makes of them, or null where it refuses."""
import dataclasses
import json
import pathlib
import random

from tools.reference import open_sora_request as request

FILE = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "open_sora_request.json"
PROMPTS = ["a cat", "|0|a cat|2| a dog |5|", "|0| a|1|b", "|1|a cat", "|0|a|b", "|0|a|2", "|0|a|2|b|2|c", "|0|a|3|b|1|c", "a | b", "|0|"]
ENDINGS = ["a cat", "a cat{}", 'a cat {"mask_strategy": "0"}', '{"reference_path": "a.png;b.mp4", "mask_strategy": "0;0,1"}',
           'a {"seed": 1}', "a {b} c", "a {", "a sign that says {hi}", 'a sign that says {"hi"}', 'a {b} c {"mask_strategy": "0"} ',
           'a {"reference_path": "a{1}.png"}', 'a {"mask_strategy": 0}', 'a {"reference_path": null}', 'a {"mask_strategy": "0"',
           'a {"reference_path": "a.png"} b', "a {'mask_strategy': '0'}", '{"x": {"mask_strategy": "0"}}',
           '|0|a|1|b {"mask_strategy": "0,0"}', "the words reference_path and mask_strategy"]
SCORES = [("a cat", 6.5, None, None), ("a cat", 6.5, 4, "pan right"), ("a cat motion score: 2.", 5.25, 7.0, None),
          ("aesthetic score: 1. camera motion: none.", 6.5, 0.06, "zoom in"), ("", 6.5, None, None), ("a cat", None, None, None)]
STRATEGIES = ["", "0", "0;0,1,0,-1,1", "1,0,0,-1,5,0.5", "0,0,-5,0,5", "0,0,0,0,15,0", "0,-1", "0,0,0,0,1,1", ";", "0;", "0,0,0,0,1,0,0",
              "a", "0.5", "0,0,0,0,1,2", "0,0,0,0,1,-0.1", "0,0,0,0,0", "-1", "0,0,0,0,1,nan", "0,,1"]


def attempt(function, *arguments):
    try:
        return function(*arguments)
    except ValueError:
        return None


def placements(rng):
    for _ in range(150):
        frames = rng.choice([1, 2, 5, 7, 10, 15]), rng.choice([1, 5, 7, 10, 15])
        start, target = (rng.randint(-count - 1, count) for count in frames)
        given = request.Given(start=start, target=target, length=rng.randint(1, 16))
        align = rng.choice([None, 5, 5, 4])
        yield {"start": given.start, "target": given.target, "length": given.length, "reference_frames": frames[0],
               "target_frames": frames[1], "align": align, "expected": attempt(request.frames_of, given, *frames, align)}


def main():
    tables = request.size_tables()
    ratios = sorted({ratio for table in tables.values() for ratio in table} | set(request.RATIOS) | {"1", "16:10"})
    golden = {
        "sizes": {name: {ratio: size for ratio in ratios if (size := attempt(request.image_size, name, ratio))} for name in tables},
        "frames": request.FRAMES,
        "latents": [[size, request.latent_size(*size)] for size in ((1, 43, 61), (5, 8, 8), (16, 240, 426), (17, 240, 426), (18, 64, 64),
                                                                    (22, 27, 45), (51, 240, 426), (102, 720, 1280), (816, 144, 256))],
        "scores": [{"prompt": prompt, "aesthetic": aesthetic, "motion": motion, "camera_motion": camera,
                    "expected": request.with_scores(prompt, aesthetic, motion, camera)} for prompt, aesthetic, motion, camera in SCORES],
        "schedules": [{"prompt": prompt, "expected": attempt(request.schedule, prompt)} for prompt in PROMPTS],
        "settings": [{"prompt": prompt, "expected": attempt(request.split_settings, prompt)} for prompt in ENDINGS],
        "strategies": [{"text": text, "expected": groups and [dataclasses.astuple(one) for one in groups]}
                       for text in STRATEGIES for groups in [attempt(request.parse_mask_strategy, text)]],
        "placements": list(placements(random.Random(0))),
    }
    rows = ",\n".join(f"{json.dumps(key)}: " + (json.dumps(value) if isinstance(value, dict) and key != "sizes" else
                                               json.dumps(value).replace("}, ", "},\n ")) for key, value in golden.items())
    FILE.write_text("{" + rows + "}\n")


if __name__ == "__main__":
    main()
