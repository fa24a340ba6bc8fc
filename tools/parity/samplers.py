"""Compares Tessera's samplers with diffusers' schedulers over random scheduler_config.json files, numbers of steps and
seeds. It needs build/tests/run_samplers.

Files mix options of all classes, and one class may run the file of another, with options of its own in the place of the
file's, as from_config(config, key=value) takes them. The table of the options of each class equals the signatures of
diffusers. After every step latents may differ by 1e-5 of their largest value. diffusers computes weights in fp32, and some
options make it subtract large numbers that are nearly equal; where its rounding exceeds that limit, latents may differ by
ROUNDING times as much as diffusers' result differs from its result in fp64, or as that one differs from fp64 whose latents are
rounded to fp32 after each step. Timesteps are equal with two
exceptions: where diffusers truncates a timestep that is whole but for the last bit of numpy's logarithm, it may be one less,
and for some numbers of steps diffusers has an additional one, -1. Where diffusers fails or its latents are not finite, Tessera
has to fail too or to do better; it must accept everything else."""
from tools import missing_packages  # noqa: F401  (says how to get those that are missing)
import argparse
import collections
import dataclasses
import inspect
import json
import math
import random
import subprocess
import sys
import warnings

import diffusers
import torch

from tools.golden import samplers as golden

TOLERANCE = 1e-5
ROUNDING = 4
SHAPE = (2, 4, 3, 5)
CLASSES = [golden.DDIM, golden.PNDM, golden.EULER, golden.ANCESTRAL, golden.DPM, golden.UNIPC, golden.FLOW, golden.DDPM,
           golden.LCM, golden.TCD, golden.LMS, golden.HEUN, golden.KDPM2, golden.KDPM2_A, golden.SINGLESTEP, golden.DEIS,
           golden.SA, golden.EDM_EULER, golden.EDM_DPM]

# These are the options and their values; a file has one in three of them.
OPTIONS = {
    "clip_sample": [False, True], "clip_sample_range": [0.5, 2.0], "set_alpha_to_one": [False, True],
    "skip_prk_steps": [False, True], "steps_offset": [0, 1, 1], "timestep_spacing": ["linspace", "leading", "trailing"],
    "prediction_type": ["epsilon", "v_prediction", "sample"], "interpolation_type": ["linear", "log_linear"],
    "timestep_type": ["discrete", "continuous"], "final_sigmas_type": ["zero", "sigma_min"], "solver_order": [1, 2, 3],
    "solver_type": ["midpoint", "heun", "bh1", "bh2", "logrho"], "lower_order_final": [False, True],
    "euler_at_final": [False, True], "predict_x0": [False, True], "disable_corrector": [[], [0], [1, 3]],
    "algorithm_type": ["dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver", "deis"],
    "sigma_min": [0.03, None], "sigma_max": [12.0, None], "rescale_betas_zero_snr": [False, False, True],
    "lambda_min_clipped": [-float("inf"), -5.1], "use_lu_lambdas": [False, True], "shift": [1.0, 3.0],
    "flow_shift": [1.0, 3.0], "sample_max_value": [0.5, 1.0, 1.5, 4.0], "thresholding": [False, False, True], "trained_betas": [None],
    "dynamic_thresholding_ratio": [0.7, 0.995], "variance_type": [None, "fixed_small", "fixed_small_log", "fixed_large"], "stochastic_sampling": [False, True],
    "invert_sigmas": [False, True], "original_inference_steps": [30, 50, 100], "timestep_scaling": [0.01, 10.0],
    "sigma_data": [0.5, 1.0], "sigma_schedule": ["karras", "exponential"], "rho": [5.0, 7.0],
    "predictor_order": [1, 2, 3], "corrector_order": [1, 2, 3]}
RESPACED = ["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"]
SCHEDULES = [{}, golden.SCALED, golden.SCALED, golden.SCALED, golden.COSINE, {"beta_end": 0.015}]


# By the default of a parameter; the default None says nothing.
TYPES = {bool: "flag", int: "integer", float: "number", str: "text", list: "integers"}


def parameters_of(class_name):
    return {key: value.default for key, value in inspect.signature(getattr(diffusers, class_name).__init__).parameters.items()
            if key != "self"}


def random_options(source, class_name):
    """Options of the class as a request gives them."""
    known = sorted(parameters_of(class_name))
    options = {key: source.choice(OPTIONS[key]) for key in known if key in OPTIONS and source.random() < 0.2}
    if set(RESPACED) <= set(known) and source.random() < 0.4:
        options[source.choice(RESPACED)] = True
    if class_name == golden.SA and "algorithm_type" in options:  # it refuses the names of others
        options["algorithm_type"] = source.choice(["data_prediction", "noise_prediction"])
    return options


def wrong_tables(binary):
    """Says where the table of the options of each class differs from diffusers."""
    tables = json.loads(subprocess.run([binary, "--options"], capture_output=True, text=True, check=True).stdout)
    wrong = [f"classes {sorted(tables)}, expected {sorted(CLASSES)}"] if set(tables) != set(CLASSES) else []
    for class_name, table in tables.items():
        parameters = parameters_of(class_name)
        if set(table) != set(parameters):
            wrong.append(f"{class_name}: options that differ from diffusers': {sorted(set(table) ^ set(parameters))}")
        for key in set(table) & set(parameters):
            expected = TYPES.get(type(parameters[key]), table[key])
            if table[key] != expected:
                wrong.append(f"{class_name}: {key} is {table[key]}, expected {expected}")
    return wrong


def random_case(source):
    scheduler = source.choice(CLASSES)
    config = {"_class_name": scheduler if source.random() < 0.6 else source.choice(CLASSES), **source.choice(SCHEDULES)}
    config.update({key: source.choice(values) for key, values in OPTIONS.items() if source.random() < 0.33})
    if source.random() < 0.4:
        config[source.choice(RESPACED)] = True
    if source.random() < 0.1:
        config.update(golden.FLOW_MODEL)
    if source.random() < 0.2:
        config["num_train_timesteps"] = source.choice([100, 400])
    if scheduler == golden.SA and "algorithm_type" in config:  # it refuses the names of others
        config["algorithm_type"] = source.choice(["data_prediction", "noise_prediction"])
    # A class that gets another's solver_type renames it, and what takes its place would find that name.
    other = None if "solver_type" in config else source.choice([None, None, None, *CLASSES])
    options = {} if "solver_type" in config or source.random() < 0.6 else random_options(source, other or scheduler)
    steps = source.choice([source.randint(1, 30), source.randint(31, 100)])
    return {"config": config, "scheduler": scheduler, "steps": steps, "tokens": 0, "shape": SHAPE,
            "eta": source.choice([0.0, 0.5, 1.0, source.random()]), "seed": source.getrandbits(32),
            "is_stable_diffusion": source.random() < 0.2, "other": other,
            "options": [f"{key}={json.dumps(value)}" for key, value in options.items()]}


@dataclasses.dataclass
class Reference:
    scheduler: object = None
    latents: list = None  # after each step, with the noise of a generator of the case's seed
    failure: str = ""


def options_of(case):
    return {key: json.loads(value) for key, value in (text.split("=", 1) for text in case["options"])}


def run_diffusers(case, dtype=torch.float32, rounds=False):
    generator = torch.Generator().manual_seed(case["seed"])

    def draw():
        return torch.randn(SHAPE, generator=generator).to(dtype)

    try:
        scheduler = golden.make_scheduler(case["scheduler"], case["config"], case["steps"],
                                          is_stable_diffusion=case["is_stable_diffusion"], other=case["other"],
                                          options=options_of(case))
        for name, value in vars(scheduler).items():
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32 and name != "timesteps":
                setattr(scheduler, name, value.to(dtype))
        z = draw() * float(getattr(scheduler, "init_noise_sigma", 1.0))
        latents = list(golden.latents_after_steps(scheduler, z, case["eta"], draw, (lambda z: z.float().to(dtype)) if rounds else None))
    except (ValueError, IndexError, NameError, RuntimeError, NotImplementedError, TypeError) as error:
        return Reference(failure=str(error))
    if not all(torch.isfinite(z).all() for z in latents):
        return Reference(failure="latents are not finite")
    return Reference(scheduler, latents)


def difference(result, reference):
    """Returns the largest difference of all steps, relative to the step's latents."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(result, reference, strict=True))


def is_nearly_whole(scheduler, index):
    sigmas = ((1 - scheduler.alphas_cumprod) / scheduler.alphas_cumprod).sqrt().double()
    timestep = scheduler._sigma_to_t(scheduler.sigmas[index].double().numpy(), sigmas.log().numpy()).item()
    return abs(timestep - round(timestep)) < 1e-3


def compare(case, result):
    """Returns a case's outcome and an empty text, or an empty outcome and a description of the failure."""
    reference = run_diffusers(case)
    if reference.failure:
        return ("fails in both" if "error" in result else "fails in diffusers alone"), ""
    if "error" in result:
        return "", f"only Tessera fails: {result['error']}"
    timesteps = reference.scheduler.timesteps.tolist()
    more = timesteps[len(result["timesteps"]):]
    if len(more) in (1, 2) and more[-1] == -1:  # two where the model is evaluated twice in a step
        return "without a step at timestep -1", ""
    if len(timesteps) != len(result["timesteps"]):
        return "", f"{len(result['timesteps'])} timesteps, expected {len(timesteps)}"
    apart = [i for i, (a, b) in enumerate(zip(result["timesteps"], timesteps)) if abs(a - b) > TOLERANCE * max(1, abs(b))]
    if apart and all(isinstance(timesteps[i], int) and is_nearly_whole(reference.scheduler, i) for i in apart):
        return "truncated otherwise", ""
    if apart:
        return "", f"timesteps {result['timesteps']}, expected {timesteps}"
    latents = [torch.tensor(z).view(SHAPE) for z in result["latents"]]
    error = difference(latents, reference.latents)
    if error <= TOLERANCE:
        return "equal", ""
    exact = run_diffusers(case, torch.float64)
    rounded = run_diffusers(case, torch.float64, rounds=True)
    rounding = math.nan
    if not exact.failure and not rounded.failure:
        rounding = max(difference(reference.latents, exact.latents), difference(rounded.latents, exact.latents))
    if error <= ROUNDING * rounding:
        return "equal but for diffusers' rounding", ""
    return "", f"latents differ by {error:.1e}; diffusers' rounding {rounding:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/tests/run_samplers")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    diffusers.utils.logging.set_verbosity(diffusers.utils.logging.CRITICAL)
    torch.set_num_threads(1)
    wrong = wrong_tables(options.binary)
    print("\n".join([*wrong, f"options of {len(CLASSES)} classes: {len(wrong)} differ"]), flush=True)
    source = random.Random(options.seed)
    cases = [random_case(source) for _ in range(options.count)]
    done = subprocess.run([options.binary], input=json.dumps(cases), capture_output=True, text=True, check=True)
    tally = collections.Counter()
    for case, result in zip(cases, json.loads(done.stdout), strict=True):
        outcome, failure = compare(case, result)
        tally[outcome or "FAILED"] += 1
        if failure:
            print(f"{failure}\n  {json.dumps(case)}", flush=True)
    print(f"{options.count} samplers: " + ", ".join(f"{count} {outcome}" for outcome, count in tally.most_common()))
    sys.exit(1 if tally["FAILED"] or wrong else 0)


if __name__ == "__main__":
    main()
