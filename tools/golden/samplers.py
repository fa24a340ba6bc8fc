"""Writes tests/golden/samplers/cases.json: the results of diffusers' schedulers over many options and numbers of steps.

A case is one line: scheduler_config.json (bare NaN and Infinity included), the scheduler that runs, the number of steps, and
its timesteps and latents after every step. The model is a fixed function of its input and timestep, which the test
evaluates as well. The format is JSON because most of a case is its config; nine digits represent a float32 exactly.
"""

import json
import pathlib
import sys
import warnings

import diffusers
import numpy as np
import torch

SHAPE = (1, 2, 2)
MAX_STEPS = 20
DDIM, PNDM = "DDIMScheduler", "PNDMScheduler"
EULER, ANCESTRAL = "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"
DDPM, LCM, TCD = "DDPMScheduler", "LCMScheduler", "TCDScheduler"
LMS, HEUN, KDPM2, KDPM2_A = ("LMSDiscreteScheduler", "HeunDiscreteScheduler", "KDPM2DiscreteScheduler",
                            "KDPM2AncestralDiscreteScheduler")
SINGLESTEP, DEIS = "DPMSolverSinglestepScheduler", "DEISMultistepScheduler"
SA, EDM_EULER, EDM_DPM = "SASolverScheduler", "EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"
DPM, UNIPC, FLOW = "DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
SCALED = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
COSINE = {"beta_schedule": "squaredcos_cap_v2"}
TRAINED = {"num_train_timesteps": 40, "trained_betas": [round(0.001 + 0.0005 * i, 6) for i in range(40)]}
ZERO_SNR = {**SCALED, "rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}
SDE, NOISE_ODE, NOISE_SDE = "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"
FLOW_MODEL = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
# Stable Diffusion XL's file includes options that belong to other classes.
SDXL = {**SCALED, "clip_sample": False, "interpolation_type": "linear", "set_alpha_to_one": False, "steps_offset": 1,
        "skip_prk_steps": True, "sample_max_value": 1.0, "timestep_spacing": "leading", "trained_betas": None,
        "_diffusers_version": "0.19.0.dev0", "use_karras_sigmas": False}
# These are the options of Stable Diffusion 1 and 2, and of SDXL Turbo.
SD = {**SCALED, "clip_sample": False, "set_alpha_to_one": False, "skip_prk_steps": True, "steps_offset": 1, "trained_betas": None,
      "num_train_timesteps": 1000}
SD_V = {**SD, "prediction_type": "v_prediction"}
TURBO = {**SDXL, "timestep_spacing": "trailing"}
# These are the options of PixArt's files.
PIXART = {"algorithm_type": "dpmsolver++", "beta_end": 0.02, "beta_schedule": "linear", "beta_start": 0.0001,
          "dynamic_thresholding_ratio": 0.995, "euler_at_final": False, "lambda_min_clipped": -float("inf"),
          "lower_order_final": True, "num_train_timesteps": 1000, "prediction_type": "epsilon",
          "sample_max_value": 1.0, "solver_order": 2, "solver_type": "midpoint", "steps_offset": 0,
          "thresholding": False, "timestep_spacing": "linspace", "trained_betas": None, "use_karras_sigmas": False,
          "use_lu_lambdas": False, "variance_type": None}

# In one step from sigma = 4096 or 700 down to a few, or to 0, diffusers' Euler subtracts float32 numbers of that size, and too
# few digits remain to compare with. So these cases have only runs of many steps; the closed forms of the tests hold for any.
LOSSY = {(EULER, "zero snr"): (20,), (ANCESTRAL, "zero snr"): (20,), (EULER, "continuous"): (4, 20)}

# 6 and 7 do not divide 1000, and put timesteps between two integers for some spacings; 16 does so for trailing ones.
STEPS, TRAILING_STEPS = (1, 4, 6, 7, MAX_STEPS), (1, 4, 6, 7, 16, MAX_STEPS)

# Dynamic thresholding; in some steps the quantile is below 1, in some above the largest value.
QUANTILE = {"thresholding": True, "dynamic_thresholding_ratio": 0.8, "sample_max_value": 1.7}
FEW = {"steps": (1, 4, 7)}

# Each row has name, class, options and optionally more: the class of the file ("file"), the number of image tokens, eta, the
# numbers of steps.
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
    ("stable diffusion 2", DDIM, SD_V),
    ("eta", DDIM, SD, {"eta": 0.6}),
    ("eta 1 clip v", DDIM, {**SCALED, "prediction_type": "v_prediction"}, {"eta": 1.0}),
    ("eta zero snr", DDIM, {**ZERO_SNR, "clip_sample": False, "timestep_spacing": "trailing"}, {"eta": 0.8}),
    ("zero snr clip", DDIM, {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}),
    ("from sdxl", DDIM, SDXL, {"file": EULER}),
    ("from pixart", DDIM, PIXART, {"file": DPM}),
    ("defaults", PNDM, {}),
    ("stable diffusion", PNDM, SD),
    ("stable diffusion 2", PNDM, SD_V),
    ("runge kutta v", PNDM, {**SD_V, "skip_prk_steps": False, "set_alpha_to_one": True}),
    ("trailing", PNDM, {**SD, "timestep_spacing": "trailing"}),
    ("linspace", PNDM, {**SD, "timestep_spacing": "linspace", "set_alpha_to_one": True}),
    ("from zero snr", PNDM, {**SD, **ZERO_SNR}, {"file": DDIM}),
    ("from sdxl", PNDM, SDXL, {"file": EULER}),
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
    ("sigma min trailing", EULER, {**SCALED, "final_sigmas_type": "sigma_min", "timestep_spacing": "trailing"}),
    ("cosine", EULER, {**COSINE, "prediction_type": "v_prediction", "timestep_spacing": "leading"}),
    ("zero snr", EULER, {**ZERO_SNR, "timestep_spacing": "trailing"}),
    ("from pixart", EULER, PIXART, {"file": DPM}),
    ("defaults", ANCESTRAL, {}),
    ("leading", ANCESTRAL, {**SCALED, "timestep_spacing": "leading", "steps_offset": 1}),
    ("v trailing", ANCESTRAL, {**SCALED, "prediction_type": "v_prediction", "timestep_spacing": "trailing"}),
    ("zero snr", ANCESTRAL, {**ZERO_SNR, "timestep_spacing": "trailing"}),
    ("turbo", ANCESTRAL, TURBO),
    ("from sdxl", ANCESTRAL, SDXL, {"file": EULER}),
    ("defaults", DPM, {}),
    ("pixart", DPM, PIXART),
    ("order 1", DPM, {**SCALED, "solver_order": 1}),
    ("order 3", DPM, {**SCALED, "solver_order": 3}),
    ("order 3 to the end", DPM, {**SCALED, "solver_order": 3, "lower_order_final": False, "final_sigmas_type": "sigma_min"}),
    ("heun", DPM, {**SCALED, "solver_type": "heun"}),
    ("order 3 around few steps", DPM, {**SCALED, "solver_order": 3, "final_sigmas_type": "sigma_min"}, {"steps": (14, 15)}),
    ("euler at final", DPM, {**SCALED, "euler_at_final": True, "final_sigmas_type": "sigma_min"}),
    ("sigma min", DPM, {**SCALED, "final_sigmas_type": "sigma_min", "lower_order_final": False}),
    ("karras", DPM, {**SCALED, "use_karras_sigmas": True}),
    ("karras cosine", DPM, {**COSINE, "use_karras_sigmas": True, "prediction_type": "v_prediction"}),
    ("exponential", DPM, {**SCALED, "use_exponential_sigmas": True}),
    ("beta", DPM, {**SCALED, "use_beta_sigmas": True}),
    ("lu", DPM, {**SCALED, "use_lu_lambdas": True}),
    ("lu karras", DPM, {**SCALED, "use_lu_lambdas": True, "use_karras_sigmas": True}),
    ("lu cosine", DPM, {**COSINE, "use_lu_lambdas": True}),
    ("deis", DPM, {**SCALED, "algorithm_type": "deis", "solver_type": "logrho"}),
    ("deis sigma min", DPM, {**SCALED, "algorithm_type": "deis", "solver_type": "logrho", "final_sigmas_type": "sigma_min"}),
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
    ("from stable diffusion 2", DPM, {**SD_V, "use_karras_sigmas": True}, {"file": DDIM}),
    ("from unipc", DPM, {**SCALED, "solver_type": "bh2", "predict_x0": True, "solver_order": 4}, {"file": UNIPC}),
    ("from euler with sigmas", DPM, {**SCALED, "use_karras_sigmas": True, "sigma_min": 0.05, "sigma_max": 10.0}, {"file": EULER}),
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
    ("flow exponential", UNIPC, {**FLOW_MODEL, "use_exponential_sigmas": True}),
    ("zero snr", UNIPC, {**ZERO_SNR, "timestep_spacing": "trailing"}),
    ("from stable diffusion", UNIPC, SD, {"file": PNDM}),
    ("from sdxl", UNIPC, SDXL, {"file": EULER}),
    ("from pixart", UNIPC, PIXART, {"file": DPM}),
    ("defaults", FLOW, {}),
    ("shift", FLOW, {"shift": 3.0}),
    ("dynamic", FLOW, {"use_dynamic_shifting": True, "shift": 3.0}, {"tokens": 1024}),
    ("dynamic lengths", FLOW, {"use_dynamic_shifting": True, "base_image_seq_len": 128, "max_image_seq_len": 1024}, {"tokens": 700}),
    ("dynamic linear", FLOW, {"use_dynamic_shifting": True, "time_shift_type": "linear", "base_shift": 0.95, "max_shift": 2.05}, {"tokens": 4096}),
    ("terminal", FLOW, {"use_dynamic_shifting": True, "shift_terminal": 0.1}, {"tokens": 600}),
    ("karras", FLOW, {"use_karras_sigmas": True}),
    ("exponential", FLOW, {"use_exponential_sigmas": True, "shift": 2.0}),
    ("beta", FLOW, {"use_beta_sigmas": True}),
    ("inverted", FLOW, {"invert_sigmas": True}),
    ("stochastic", FLOW, {"stochastic_sampling": True, "shift": 3.0}),
    ("defaults", DDPM, {}, FEW),
    ("from sdxl", DDPM, SDXL, {**FEW, "file": EULER}),
    ("from pixart", DDPM, {**PIXART, "clip_sample": False}, {**FEW, "file": DPM}),
    ("large v trailing", DDPM, {**ZERO_SNR, "variance_type": "fixed_large", "timestep_spacing": "trailing", "clip_sample": False}, FEW),
    ("large clip range", DDPM, {"variance_type": "fixed_large", "clip_sample_range": 0.4, "prediction_type": "sample"}, FEW),
    ("defaults", LCM, {}, FEW),
    ("v clip", LCM, {**ZERO_SNR, "clip_sample": True, "clip_sample_range": 0.6, "original_inference_steps": 30}, FEW),
    ("scaling", LCM, {"timestep_scaling": 0.01, "prediction_type": "sample"}, FEW),
    ("from sdxl", LCM, SDXL, {**FEW, "file": EULER}),
    ("defaults", TCD, {}, FEW),
    ("eta", TCD, {}, {**FEW, "eta": 0.3}),
    ("eta 1 v", TCD, {**ZERO_SNR, "original_inference_steps": 70}, {**FEW, "eta": 1.0}),
    ("eta sample", TCD, {"prediction_type": "sample"}, {**FEW, "eta": 0.8}),
    ("defaults", LMS, {}, FEW),
    ("v leading", LMS, {**SD_V, "timestep_spacing": "leading"}, FEW),
    ("sample trailing", LMS, {**SCALED, "prediction_type": "sample", "timestep_spacing": "trailing"}, FEW),
    ("karras", LMS, {**SCALED, "use_karras_sigmas": True, "sigma_min": 0.05, "sigma_max": 10.0}, {**FEW, "file": EULER}),
    ("exponential", LMS, {**SCALED, "use_exponential_sigmas": True, "sigma_min": 0.05, "sigma_max": 10.0}, {**FEW, "file": EULER}),
    ("from zero snr", LMS, {**SD, **ZERO_SNR}, {**FEW, "file": DDIM}),
    ("defaults", HEUN, {}, FEW),
    ("v leading", HEUN, {**SD_V, "timestep_spacing": "leading"}, FEW),
    ("sample trailing", HEUN, {**SCALED, "prediction_type": "sample", "timestep_spacing": "trailing"}, FEW),
    ("clip range", HEUN, {**SCALED, "clip_sample": True, "clip_sample_range": 0.4}, FEW),
    ("karras range", HEUN, {**SCALED, "use_karras_sigmas": True, "sigma_min": 0.05, "sigma_max": 10.0}, {**FEW, "file": EULER}),
    ("defaults", KDPM2, {}, FEW),
    ("v leading", KDPM2, {**SD_V, "timestep_spacing": "leading"}, FEW),
    ("karras", KDPM2, {**SCALED, "use_karras_sigmas": True}, FEW),
    ("beta trailing", KDPM2, {**SCALED, "use_beta_sigmas": True, "timestep_spacing": "trailing"}, FEW),
    ("defaults", KDPM2_A, {}, FEW),
    ("v leading", KDPM2_A, {**SD_V, "timestep_spacing": "leading"}, FEW),
    ("karras", KDPM2_A, {**SCALED, "use_karras_sigmas": True}, FEW),
    ("defaults", SINGLESTEP, {}, FEW),
    ("order 3", SINGLESTEP, {**SCALED, "solver_order": 3, "lower_order_final": True}, {"steps": (4, 5, 6)}),
    ("order 3 heun to the end", SINGLESTEP, {**SCALED, "solver_order": 3, "solver_type": "heun", "final_sigmas_type": "sigma_min"}, {"steps": (3, 6)}),
    ("heun karras v", SINGLESTEP, {**SD_V, "solver_type": "heun", "use_karras_sigmas": True}, FEW),
    ("sde order 3", SINGLESTEP, {**SCALED, "algorithm_type": SDE, "solver_order": 3, "solver_type": "heun"}, FEW),
    ("noise", SINGLESTEP, {**SCALED, "algorithm_type": NOISE_ODE, "final_sigmas_type": "sigma_min"}, {"steps": (4, 7)}),
    ("flow", SINGLESTEP, {**FLOW_MODEL, "flow_shift": 3.0}, FEW),
    ("from pixart", SINGLESTEP, {**PIXART, "timestep_spacing": "trailing"}, {**FEW, "file": DPM}),
    ("defaults", DEIS, {}, FEW),
    ("order 3", DEIS, {**SCALED, "solver_order": 3, "lower_order_final": False}, FEW),
    ("v leading", DEIS, {**SD_V, "timestep_spacing": "leading", "solver_order": 3}, FEW),
    ("sample karras", DEIS, {**SCALED, "prediction_type": "sample", "use_karras_sigmas": True}, FEW),
    ("order 3 around few steps", DEIS, {**SCALED, "solver_order": 3}, {"steps": (14, 15)}),
    ("defaults", EDM_EULER, {}, {"steps": (4, 7)}),
    ("exponential v", EDM_EULER, {"sigma_schedule": "exponential", "prediction_type": "v_prediction", "sigma_data": 1.0, "sigma_max": 20.0, "final_sigmas_type": "sigma_min"}, FEW),
    ("defaults", EDM_DPM, {}, FEW),
    ("order 3 v", EDM_DPM, {"solver_order": 3, "prediction_type": "v_prediction", "sigma_data": 1.0, "sigma_max": 20.0, "rho": 5.0}, FEW),
    ("sde heun", EDM_DPM, {"algorithm_type": SDE, "solver_type": "heun", "sigma_schedule": "exponential", "final_sigmas_type": "sigma_min"}, FEW),
    ("defaults", SA, {}, FEW),
    ("orders 3 and 4 v", SA, {**SD_V, "predictor_order": 3, "corrector_order": 4, "timestep_spacing": "leading"}, FEW),
    ("noise orders 2 and 3", SA, {**SCALED, "algorithm_type": "noise_prediction", "corrector_order": 3}, FEW),
    ("sample karras to the end", SA, {**SCALED, "prediction_type": "sample", "use_karras_sigmas": True, "lower_order_final": False}, FEW),
    ("exponential trailing", KDPM2_A, {**SCALED, "use_exponential_sigmas": True, "timestep_spacing": "trailing"}, FEW),
    ("threshold 1", DDIM, {**SCALED, "thresholding": True, "clip_sample_range": 0.4}, {"steps": (7,)}),
    ("threshold below 1", DDIM, {**SCALED, "thresholding": True, "sample_max_value": 0.5}, {"steps": (4,), "eta": 0.6}),
    ("quantile", DDPM, {**SCALED, **QUANTILE}, {"steps": (7,)}),
    ("quantile", LCM, {**SCALED, **QUANTILE}, {"steps": (4,)}),
    ("quantile v", DPM, {**SD_V, **QUANTILE}, {"steps": (7,)}),
    ("quantile noise", DPM, {**SCALED, **QUANTILE, "algorithm_type": NOISE_ODE, "final_sigmas_type": "sigma_min"}, {"steps": (7,)}),
    ("quantile", SINGLESTEP, {**SCALED, **QUANTILE}, {"steps": (7,)}),
    ("quantile", EDM_DPM, QUANTILE, {"steps": (7,)}),
    ("quantile", DEIS, {**SCALED, **QUANTILE, "solver_order": 3}, {"steps": (7,)}),
    ("quantile", UNIPC, {**SCALED, **QUANTILE}, {"steps": (7,)}),
    ("quantile without effect", UNIPC, {**SCALED, **QUANTILE, "predict_x0": False, "final_sigmas_type": "sigma_min"}, {"steps": (7,)}),
    ("quantile", SA, {**SCALED, **QUANTILE}, {"steps": (7,)}),
    ("flow to sigma min", SINGLESTEP, {**SCALED, **FLOW_MODEL, "solver_order": 1, "final_sigmas_type": "sigma_min", "flow_shift": 1.0}, {"steps": (50,)}),
]


def model(x, timestep):
    return torch.sin(x * 0.9 + float(timestep) * 0.004) * 0.7


def shift_of_tokens(config, tokens):
    """Returns the shift for an image of `tokens` tokens, by the rule of diffusers' pipelines."""
    slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
    return tokens * slope + config.base_shift - slope * config.base_image_seq_len


def digits(tensor):
    return [float(f"{value:.9g}") for value in np.asarray(tensor, dtype=np.float64).reshape(-1)]


def make_scheduler(class_name, config, steps, tokens=0, is_stable_diffusion=False, other=None, options=None):
    scheduler = getattr(diffusers, class_name).from_config(config)
    if is_stable_diffusion:  # its pipeline changes the scheduler's options
        diffusers.StableDiffusionPipeline(scheduler=scheduler, requires_safety_checker=False, **dict.fromkeys(
            ["vae", "text_encoder", "tokenizer", "unet", "safety_checker", "feature_extractor"]))
    if other or options:
        scheduler = getattr(diffusers, other or class_name).from_config(scheduler.config, **(options or {}))
    extra = {"mu": shift_of_tokens(scheduler.config, tokens)} if tokens else {}
    scheduler.set_timesteps(steps, **extra)
    scheduler.set_begin_index(0) if hasattr(scheduler, "set_begin_index") else None
    return scheduler


def latents_after_steps(scheduler, z, eta, draw, change=None):
    """Runs the scheduler on model(). draw() returns the noise of steps that need some; change() replaces latents."""
    for timestep in scheduler.timesteps:
        x = scheduler.scale_model_input(z, timestep) if hasattr(scheduler, "scale_model_input") else z
        # The schedulers' modules draw noise with a function of this name.
        sys.modules[type(scheduler).__module__].randn_tensor = lambda *_, **__: draw()
        extra = {"eta": eta} if isinstance(scheduler, (diffusers.DDIMScheduler, diffusers.TCDScheduler)) else {}
        z = scheduler.step(model(x, timestep), timestep, z, **extra).prev_sample
        z = change(z) if change else z
        yield z


def run(class_name, config, steps, tokens, eta, initial, noises):
    try:
        scheduler = make_scheduler(class_name, config, steps, tokens)
        sigma = float(getattr(scheduler, "init_noise_sigma", 1.0))
        fresh = iter(noises)
        latents = list(latents_after_steps(scheduler, initial * sigma, eta, lambda: next(fresh)))
    except ValueError as error:
        print(f"{error}: {class_name}, {steps} steps, {config}")
        return {"latents": None}  # an error is expected
    if not all(torch.isfinite(z).all() for z in latents):
        print(f"not finite: {class_name}, {steps} steps, {config}")
        return {"latents": None}
    return {"init_noise_sigma": float(f"{sigma:.9g}"), "timesteps": digits(scheduler.timesteps),
            "latents": [digits(z) for z in latents]}


def main():
    warnings.simplefilter("ignore")
    diffusers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(SHAPE, generator=generator)
    noises = torch.randn((MAX_STEPS, *SHAPE), generator=generator)
    lines = []
    for name, class_name, options, *rest in ROWS:
        others = {"file": class_name, "tokens": 0, "eta": 0.0, **(rest[0] if rest else {})}
        config = {"_class_name": others.pop("file"), **options}
        usual = TRAILING_STEPS if options.get("timestep_spacing") == "trailing" else STEPS
        for steps in others.pop("steps", LOSSY.get((class_name, name), usual)):
            case = {"name": name, "config": config, "scheduler": class_name, **others, "steps": steps}
            lines.append(json.dumps({**case, **run(class_name, config, steps, **others, initial=initial, noises=noises)}))
    head = f'"shape": {list(SHAPE)}, "initial": {digits(initial)}, "noises": {[digits(n) for n in noises]}'
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/samplers/cases.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + head + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
