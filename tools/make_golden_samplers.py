#!/usr/bin/env python3
"""Writes tests/golden/samplers/cases.json: what diffusers' schedulers do over many options and numbers of steps.

A case is one line: scheduler_config.json (bare NaN and Infinity included), the scheduler that runs, steps, and its
timesteps and latents after every step. The model is a fixed function of its input and timestep, which the test
evaluates as well. JSON, because most of a case is its config; numbers have nine digits, which is all of float32.
"""

import json
import pathlib
import warnings

import diffusers
import numpy as np
import torch
from diffusers.schedulers import scheduling_euler_ancestral_discrete, scheduling_flow_match_euler_discrete

SHAPE = (1, 2, 2)
MAX_STEPS = 20
DDIM, EULER, ANCESTRAL = "DDIMScheduler", "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"
DPM, UNIPC, FLOW = "DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
SCALED = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
COSINE = {"beta_schedule": "squaredcos_cap_v2"}
TRAINED = {"num_train_timesteps": 40, "trained_betas": [round(0.001 + 0.0005 * i, 6) for i in range(40)]}
ZERO_SNR = {**SCALED, "rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}
SDE, NOISE_ODE, NOISE_SDE = "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"
FLOW_MODEL = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
# As Stable Diffusion XL's file has it: with options that belong to other classes.
SDXL = {**SCALED, "clip_sample": False, "interpolation_type": "linear", "set_alpha_to_one": False, "steps_offset": 1,
        "skip_prk_steps": True, "sample_max_value": 1.0, "timestep_spacing": "leading", "trained_betas": None,
        "_diffusers_version": "0.19.0.dev0", "use_karras_sigmas": False}
# As PixArt's files have it.
PIXART = {"algorithm_type": "dpmsolver++", "beta_end": 0.02, "beta_schedule": "linear", "beta_start": 0.0001,
          "dynamic_thresholding_ratio": 0.995, "euler_at_final": False, "lambda_min_clipped": -float("inf"),
          "lower_order_final": True, "num_train_timesteps": 1000, "prediction_type": "epsilon",
          "sample_max_value": 1.0, "solver_order": 2, "solver_type": "midpoint", "steps_offset": 0,
          "thresholding": False, "timestep_spacing": "linspace", "trained_betas": None, "use_karras_sigmas": False,
          "use_lu_lambdas": False, "variance_type": None}

# In one step from sigma = 4096 or 700 down to a few, or to 0, diffusers' Euler subtracts float32 numbers of that size and
# keeps too few digits to compare with: only many steps are. (The closed forms of the tests hold for any number.)
LOSSY = {(EULER, "zero snr"): (20,), (ANCESTRAL, "zero snr"): (20,), (EULER, "continuous"): (4, 20)}

# Name, class, options, and where they differ the class of the file and the number of image tokens.
ROWS = [
    ("defaults", DDIM, {}),
    ("stable diffusion", DDIM, {**SCALED, "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}),
    ("clip range", DDIM, {"clip_sample": True, "clip_sample_range": 0.4}),
    ("clip v", DDIM, {"prediction_type": "v_prediction"}),
    ("sample", DDIM, {**SCALED, "prediction_type": "sample", "clip_sample": False}),
    ("v trailing", DDIM, {**SCALED, "prediction_type": "v_prediction", "clip_sample": False, "timestep_spacing": "trailing"}),
    ("linspace", DDIM, {**SCALED, "clip_sample": False, "timestep_spacing": "linspace"}),
    ("cosine", DDIM, {**COSINE, "clip_sample": False, "timestep_spacing": "trailing", "prediction_type": "v_prediction"}),
    ("trained betas", DDIM, {**TRAINED, "clip_sample": False}),
    ("zero snr", DDIM, {**ZERO_SNR, "clip_sample": False, "timestep_spacing": "trailing"}),
    ("from pixart", DDIM, PIXART, DPM),
    ("defaults", EULER, {}),
    ("sdxl", EULER, SDXL),
    ("v trailing", EULER, {**SCALED, "prediction_type": "v_prediction", "timestep_spacing": "trailing"}),
    ("sample", EULER, {**SCALED, "prediction_type": "sample"}),
    ("karras", EULER, {**SCALED, "use_karras_sigmas": True}),
    ("karras range", EULER, {**SCALED, "use_karras_sigmas": True, "sigma_min": 0.05, "sigma_max": 10.0}),
    ("exponential", EULER, {**SCALED, "use_exponential_sigmas": True}),
    ("beta", EULER, {**SCALED, "use_beta_sigmas": True}),
    ("log linear", EULER, {**SCALED, "interpolation_type": "log_linear"}),
    ("continuous", EULER, {**SCALED, "prediction_type": "v_prediction", "timestep_type": "continuous", "use_karras_sigmas": True, "sigma_min": 0.002, "sigma_max": 700.0}),
    ("log linear continuous", EULER, {**SCALED, "interpolation_type": "log_linear", "prediction_type": "v_prediction", "timestep_type": "continuous"}),
    ("sigma min", EULER, {**SCALED, "final_sigmas_type": "sigma_min"}),
    ("cosine", EULER, {**COSINE, "prediction_type": "v_prediction", "timestep_spacing": "leading"}),
    ("zero snr", EULER, {**ZERO_SNR, "timestep_spacing": "trailing"}),
    ("from pixart", EULER, PIXART, DPM),
    ("defaults", ANCESTRAL, {}),
    ("leading", ANCESTRAL, {**SCALED, "timestep_spacing": "leading", "steps_offset": 1}),
    ("v trailing", ANCESTRAL, {**SCALED, "prediction_type": "v_prediction", "timestep_spacing": "trailing"}),
    ("zero snr", ANCESTRAL, {**ZERO_SNR, "timestep_spacing": "trailing"}),
    ("from sdxl", ANCESTRAL, SDXL, EULER),
    ("defaults", DPM, {}),
    ("pixart", DPM, PIXART),
    ("order 1", DPM, {**SCALED, "solver_order": 1}),
    ("order 3", DPM, {**SCALED, "solver_order": 3}),
    ("order 3 to the end", DPM, {**SCALED, "solver_order": 3, "lower_order_final": False, "final_sigmas_type": "sigma_min"}),
    ("heun", DPM, {**SCALED, "solver_type": "heun"}),
    ("euler at final", DPM, {**SCALED, "euler_at_final": True, "final_sigmas_type": "sigma_min"}),
    ("sigma min", DPM, {**SCALED, "final_sigmas_type": "sigma_min", "lower_order_final": False}),
    ("karras", DPM, {**SCALED, "use_karras_sigmas": True}),
    ("karras cosine", DPM, {**COSINE, "use_karras_sigmas": True, "prediction_type": "v_prediction"}),
    ("exponential", DPM, {**SCALED, "use_exponential_sigmas": True}),
    ("beta", DPM, {**SCALED, "use_beta_sigmas": True}),
    ("lu", DPM, {**SCALED, "use_lu_lambdas": True}),
    ("v leading", DPM, {**SCALED, "prediction_type": "v_prediction", "timestep_spacing": "leading", "steps_offset": 1}),
    ("sample trailing", DPM, {**SCALED, "prediction_type": "sample", "timestep_spacing": "trailing"}),
    ("lambda clipped", DPM, {**COSINE, "lambda_min_clipped": -5.1}),
    ("lambda clipped trailing", DPM, {**COSINE, "lambda_min_clipped": -5.1, "timestep_spacing": "trailing"}),
    ("zero snr", DPM, {**ZERO_SNR, "timestep_spacing": "trailing"}),
    ("trained betas", DPM, TRAINED),
    ("flow", DPM, {**FLOW_MODEL}),
    ("flow shift", DPM, {**FLOW_MODEL, "flow_shift": 3.0, "solver_order": 3}),
    ("sde", DPM, {**SCALED, "algorithm_type": SDE}),
    ("sde order 1", DPM, {**SCALED, "algorithm_type": SDE, "solver_order": 1}),
    ("sde order 3", DPM, {**SCALED, "algorithm_type": SDE, "solver_order": 3}),
    ("sde heun karras", DPM, {**SCALED, "algorithm_type": SDE, "solver_type": "heun", "use_karras_sigmas": True}),
    ("sde flow", DPM, {**FLOW_MODEL, "algorithm_type": SDE, "flow_shift": 3.0}),
    ("noise", DPM, {**SCALED, "algorithm_type": NOISE_ODE, "final_sigmas_type": "sigma_min"}),
    ("noise order 3", DPM, {**SCALED, "algorithm_type": NOISE_ODE, "final_sigmas_type": "sigma_min", "solver_order": 3}),
    ("noise heun v", DPM, {**SCALED, "algorithm_type": NOISE_ODE, "final_sigmas_type": "sigma_min", "solver_type": "heun", "prediction_type": "v_prediction"}),
    ("noise sample", DPM, {**SCALED, "algorithm_type": NOISE_ODE, "final_sigmas_type": "sigma_min", "prediction_type": "sample"}),
    ("noise sde", DPM, {**SCALED, "algorithm_type": NOISE_SDE, "final_sigmas_type": "sigma_min"}),
    ("noise sde heun", DPM, {**SCALED, "algorithm_type": NOISE_SDE, "final_sigmas_type": "sigma_min", "solver_type": "heun"}),
    ("from unipc", DPM, {**SCALED, "solver_type": "bh2", "predict_x0": True, "solver_order": 4}, UNIPC),
    ("from euler with sigmas", DPM, {**SCALED, "use_karras_sigmas": True, "sigma_min": 0.05, "sigma_max": 10.0}, EULER),
    ("defaults", UNIPC, {}),
    ("stable diffusion", UNIPC, {**SCALED, "steps_offset": 1, "timestep_spacing": "leading"}),
    ("order 1", UNIPC, {**SCALED, "solver_order": 1}),
    ("order 3", UNIPC, {**SCALED, "solver_order": 3}),
    ("order 4", UNIPC, {**SCALED, "solver_order": 4}),
    ("order 3 to the end", UNIPC, {**SCALED, "solver_order": 3, "lower_order_final": False, "final_sigmas_type": "sigma_min"}),
    ("bh1", UNIPC, {**SCALED, "solver_type": "bh1", "final_sigmas_type": "sigma_min", "solver_order": 3}),
    ("noise", UNIPC, {**SCALED, "predict_x0": False, "final_sigmas_type": "sigma_min"}),
    ("noise v", UNIPC, {**SCALED, "predict_x0": False, "final_sigmas_type": "sigma_min", "prediction_type": "v_prediction", "solver_order": 3}),
    ("noise sample", UNIPC, {**SCALED, "predict_x0": False, "final_sigmas_type": "sigma_min", "prediction_type": "sample"}),
    ("uncorrected", UNIPC, {**SCALED, "disable_corrector": [0, 1, 5]}),
    ("v trailing", UNIPC, {**SCALED, "prediction_type": "v_prediction", "timestep_spacing": "trailing"}),
    ("sample", UNIPC, {**SCALED, "prediction_type": "sample"}),
    ("karras", UNIPC, {**SCALED, "use_karras_sigmas": True}),
    ("karras range", UNIPC, {**SCALED, "use_karras_sigmas": True, "sigma_min": 0.05, "sigma_max": 10.0, "final_sigmas_type": "sigma_min", "lower_order_final": False}),
    ("exponential", UNIPC, {**SCALED, "use_exponential_sigmas": True}),
    ("beta", UNIPC, {**SCALED, "use_beta_sigmas": True}),
    ("flow", UNIPC, {**FLOW_MODEL}),
    ("flow shift terminal", UNIPC, {**FLOW_MODEL, "flow_shift": 5.0, "shift_terminal": 0.1}),
    ("flow karras", UNIPC, {**FLOW_MODEL, "use_karras_sigmas": True}),
    ("zero snr", UNIPC, {**ZERO_SNR, "timestep_spacing": "trailing"}),
    ("from pixart", UNIPC, PIXART, DPM),
    ("defaults", FLOW, {}),
    ("shift", FLOW, {"shift": 3.0}),
    ("dynamic", FLOW, {"use_dynamic_shifting": True, "shift": 3.0}, FLOW, 1024),
    ("dynamic linear", FLOW, {"use_dynamic_shifting": True, "time_shift_type": "linear", "base_shift": 0.95, "max_shift": 2.05}, FLOW, 4096),
    ("terminal", FLOW, {"use_dynamic_shifting": True, "shift_terminal": 0.1}, FLOW, 600),
    ("karras", FLOW, {"use_karras_sigmas": True}),
    ("exponential", FLOW, {"use_exponential_sigmas": True, "shift": 2.0}),
    ("beta", FLOW, {"use_beta_sigmas": True}),
    ("inverted", FLOW, {"invert_sigmas": True}),
    ("stochastic", FLOW, {"stochastic_sampling": True, "shift": 3.0}),
]


def model(x, timestep):
    return torch.sin(x * 0.9 + float(timestep) * 0.004) * 0.7


def shift_of_tokens(config, tokens):
    """The pipelines' rule for the shift of an image of so many tokens."""
    slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
    return tokens * slope + config.base_shift - slope * config.base_image_seq_len


def digits(tensor):
    return [float(f"{value:.9g}") for value in np.asarray(tensor, dtype=np.float64).reshape(-1)]


def run(class_name, config, steps, tokens, initial, noises):
    scheduler = getattr(diffusers, class_name).from_config(config)
    extra = {"mu": shift_of_tokens(scheduler.config, tokens)} if tokens else {}
    scheduler.set_timesteps(steps, **extra)
    scheduler.set_begin_index(0) if hasattr(scheduler, "set_begin_index") else None
    sigma = float(getattr(scheduler, "init_noise_sigma", 1.0))
    z = initial * sigma
    latents = []
    for index, timestep in enumerate(scheduler.timesteps):
        x = scheduler.scale_model_input(z, timestep) if hasattr(scheduler, "scale_model_input") else z
        # The modules of these two draw noise with a function of their own name; DPM-Solver takes it as an argument.
        draw = lambda *_, **__: noises[index]  # noqa: B023,E731
        scheduling_euler_ancestral_discrete.randn_tensor = draw
        scheduling_flow_match_euler_discrete.randn_tensor = draw
        noise = {"variance_noise": noises[index]} if class_name == DPM else {}
        z = scheduler.step(model(x, timestep), timestep, z, **noise).prev_sample
        if not torch.isfinite(z).all():
            print(f"not finite: {class_name}, {steps} steps, {config}")
            return {"latents": None}  # an error is expected
        latents.append(digits(z))
    return {"init_noise_sigma": float(f"{sigma:.9g}"), "timesteps": digits(scheduler.timesteps), "latents": latents}


def main():
    warnings.simplefilter("ignore")
    diffusers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(SHAPE, generator=generator)
    noises = torch.randn((MAX_STEPS, *SHAPE), generator=generator)
    lines = []
    for name, class_name, options, *rest in ROWS:
        file_class, tokens = (*rest, 0)[:2] if rest else (class_name, 0)
        config = {"_class_name": file_class, **options}
        for steps in LOSSY.get((class_name, name), (1, 4, MAX_STEPS)):
            case = {"name": name, "config": config, "scheduler": class_name, "tokens": tokens, "steps": steps}
            lines.append(json.dumps({**case, **run(class_name, config, steps, tokens, initial, noises)}))
    head = f'"shape": {list(SHAPE)}, "initial": {digits(initial)}, "noises": {[digits(n) for n in noises]}'
    path = pathlib.Path(__file__).parent.parent / "tests/golden/samplers/cases.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + head + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
