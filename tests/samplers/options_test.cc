// What options of files mean, for the file's own class, for another class, and for no class at all; options
// that a request gives; names with the levels of Karras and others, and names of other programs.
#include "samplers/options.h"

#include <gtest/gtest.h>

#include "core/log.h"
#include "samplers/sampler.h"
#include "tests/support/smooth_model.h"

namespace tessera::samplers {
namespace {

JsonConfig parse(const std::string& text) {
  return {parse_json(text, "file.json"), "file.json"};
}

TEST(StableDiffusionOptions, AreSetWhateverTheFileSays) {
  const JsonConfig old = parse(R"({"_class_name": "DDIMScheduler", "steps_offset": 0, "clip_sample": true})");
  for (const JsonConfig& file : {old, parse(R"({"_class_name": "DDIMScheduler"})")}) {
    const JsonConfig config = with_stable_diffusion_options(file);
    EXPECT_EQ(config.integer("steps_offset"), 1);
    EXPECT_FALSE(config.boolean("clip_sample"));
    EXPECT_EQ(config.where(), "file.json");
    EXPECT_EQ(make_sampler(config, {}, {4})->timesteps(), (std::vector<double>{751, 501, 251, 1}));
  }
}

// The latents after one step from latents of 2 in which the model sees this noise.
float after_one_step(const JsonConfig& config, const std::optional<std::string>& name, bool ends_in_sample,
                     double noise = 0) {
  const auto sampler = make_sampler(config, name, {.steps = 1, .ends_in_sample = ends_in_sample});
  SamplerState state;
  return sampler->step(at::full({1}, noise), 0, at::full({1}, 2), state, at::zeros({1})).item<float>();
}

// What Stable Diffusion's pipeline adds to a file is not what diffusers makes another class of.
TEST(StableDiffusionOptions, AreLeftOutForAnotherClassWhereTheFileHasNoWordForThem) {
  using Timesteps = std::vector<double>;
  const auto pndm = [](const std::string& more) {
    return with_stable_diffusion_options(
        parse(R"({"_class_name": "PNDMScheduler", "skip_prk_steps": true)" + more + "}"));
  };
  const Timesteps from_zero = {750, 500, 250, 0}, from_one = {751, 501, 251, 1};
  for (const char* name : {"DDIMScheduler", "ddim"}) {
    EXPECT_EQ(make_sampler(pndm(""), name, {4})->timesteps(), from_zero) << name;
    EXPECT_EQ(make_sampler(pndm(R"(, "steps_offset": 0)"), name, {4})->timesteps(), from_one) << name;
  }
  EXPECT_EQ(after_one_step(pndm(""), "DDIMScheduler", false), 1);  // clipped
  EXPECT_GT(after_one_step(pndm(R"(, "clip_sample": true)"), "DDIMScheduler", false), 1.99);
  EXPECT_GT(after_one_step(pndm(""), "ddim", false), 1.99);

  const JsonConfig own = with_stable_diffusion_options(parse(R"({"_class_name": "DDIMScheduler"})"));
  EXPECT_EQ(make_sampler(own, "DDIMScheduler", {4})->timesteps(), from_zero);
  EXPECT_EQ(make_sampler(own, "ddim", {4})->timesteps(), from_one);  // the short name is the model's own here
}

TEST(SamplerOptions, NullIsFalse) {
  const auto final = [](const Json& to_one) {
    const Json options = {
        {"_class_name", "DDIMScheduler"}, {"clip_sample", nullptr}, {"set_alpha_to_one", to_one}};
    return after_one_step(JsonConfig(options, "file.json"), {}, false);
  };
  EXPECT_EQ(final(nullptr), final(false));
  EXPECT_NE(final(nullptr), final(true));
  EXPECT_GT(final(nullptr), 1.99);
}

TEST(SamplerOptions, AStepEndsInTheSampleWhereThatIsAskedFor) {
  for (const char* file :
       {R"({"_class_name": "DDIMScheduler", "clip_sample": false, "set_alpha_to_one": false})",
        R"({"_class_name": "EulerDiscreteScheduler", "final_sigmas_type": "sigma_min"})",
        R"({"_class_name": "EulerDiscreteScheduler", "interpolation_type": "log_linear"})"}) {
    const JsonConfig config = parse(file);
    Json ends = config.values();
    ends["set_alpha_to_one"] = true;
    ends["final_sigmas_type"] = "zero";
    ends["interpolation_type"] = "linear";
    const JsonConfig to_zero(std::move(ends), "file.json");
    // Interpolations begin at different noise.
    const double noise = config.has("interpolation_type") ? 0 : 0.5;
    EXPECT_EQ(after_one_step(config, {}, true, noise), after_one_step(to_zero, {}, true, noise)) << file;
    EXPECT_EQ(after_one_step(to_zero, {}, true, noise), after_one_step(to_zero, {}, false, noise)) << file;
  }
}

TEST(SamplerOptions, WarnsInOneLineOfOptionsThatNoSchedulerHas) {
  std::vector<std::string> warnings;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { warnings.push_back(text); });
  make_sampler(parse(R"({"new": 3, "newer": "x", "off": false, "none": null, "_own": 1, "rho": 7})"), "ddim",
               {4});
  set_log_sink(before);
  EXPECT_EQ(warnings, std::vector<std::string>{"[file.json] options without effect: new, newer"});
}

JsonConfig file_with(const Json& options) {
  Json values = {{"beta_schedule", "scaled_linear"}, {"beta_end", 0.012}};
  if (!options.is_null()) values.update(options);
  return {std::move(values), "file.json"};
}

// The timesteps of a sampler and the latents after each of its steps.
std::vector<float> path_of(const JsonConfig& config, const std::optional<std::string>& name,
                           const Json& options, int64_t steps = 5) {
  const auto sampler = make_sampler(config, name, {.steps = steps, .options = options});
  std::vector<float> path;
  at::Tensor z = at::linspace(-1, 1, 4, at::kFloat) * sampler->init_noise_sigma();
  SamplerState state;
  for (int64_t i = 0; i < sampler->steps(); ++i) {
    const double timestep = sampler->timesteps()[static_cast<size_t>(i)];
    const at::Tensor noise = sampler->needs_noise(i) ? at::full({4}, 0.1F) : at::Tensor();
    z = sampler->step(smooth_model(sampler->scale_model_input(z, i), timestep), i, z, state, noise);
    path.push_back(static_cast<float>(timestep));
    path.insert(path.end(), z.const_data_ptr<float>(), z.const_data_ptr<float>() + 4);
  }
  return path;
}

std::string refusal_of(const Json& file, const std::optional<std::string>& name, const Json& options,
                       int64_t steps = 5) {
  try {
    make_sampler(file_with(file), name, {.steps = steps, .options = options});
  } catch (const Error& error) {
    return fmt::format("{} {}", error.exit_code(), error.what());
  }
  return "none";
}

TEST(SamplerOptionsOfRequest, AreAsIfTheFileHadThem) {
  const Json none = Json::object();
  for (const auto& [name, options] : std::vector<std::pair<std::string, Json>>{
           {"euler", {{"use_karras_sigmas", true}}},
           {"euler", {{"timestep_spacing", "trailing"}, {"final_sigmas_type", "sigma_min"}}},
           {"dpm++", {{"solver_order", 3}, {"use_exponential_sigmas", true}}},
           {"dpm++", {{"lambda_min_clipped", -1.5}}},
           {"unipc", {{"disable_corrector", {0, 1}}, {"solver_type", "bh1"}}},
           {"DDIMScheduler", {{"clip_sample", false}}},
           {"heun", {{"beta_start", 0.001}, {"num_train_timesteps", 400}}}}) {
    const std::vector<float> expected = path_of(file_with(options), name, none);
    EXPECT_EQ(path_of(file_with(none), name, options), expected) << name << options;
    EXPECT_NE(path_of(file_with(none), name, none), expected) << name << options;
  }
}

TEST(SamplerOptionsOfRequest, ReplaceWhatTheFileAndAShortNameSay) {
  const Json sde = {{"algorithm_type", "sde-dpmsolver++"}};
  EXPECT_EQ(path_of(file_with({{"algorithm_type", "dpmsolver++"}}), "dpm++", sde),
            path_of(file_with({}), "dpm++-sde", Json::object()));
  EXPECT_EQ(path_of(file_with({{"_class_name", "EulerDiscreteScheduler"}, {"use_karras_sigmas", true}}), {},
                    {{"use_karras_sigmas", false}}),
            path_of(file_with({}), "euler", Json::object()));
}

// What Stable Diffusion's pipeline adds to a file is not what from_config() of diffusers makes a scheduler
// of.
TEST(SamplerOptionsOfRequest, LeaveOutWhatAPipelineAddsUnlessTheNameIsTheModelsOwn) {
  const JsonConfig file =
      with_stable_diffusion_options(JsonConfig({{"_class_name", "DDIMScheduler"}}, "file.json"));
  const auto timesteps = [&](const std::optional<std::string>& name, const Json& options) {
    return make_sampler(file, name, {.steps = 4, .options = options})->timesteps();
  };
  const std::vector<double> from_zero = {750, 500, 250, 0}, from_one = {751, 501, 251, 1};
  EXPECT_EQ(timesteps({}, Json::object()), from_one);
  EXPECT_EQ(timesteps({}, {{"set_alpha_to_one", false}}), from_zero);
  EXPECT_EQ(timesteps("ddim", {{"set_alpha_to_one", false}}), from_one);
  EXPECT_EQ(timesteps("ddim", {{"steps_offset", 0}}), from_zero);
}

TEST(SamplerOptionsOfRequest, AreRefusedInOneLine) {
  const auto expect = [](const Json& file, const std::optional<std::string>& name, const Json& options,
                         const std::string& message) {
    const std::string refusal = refusal_of(file, name, options);
    EXPECT_EQ(refusal.substr(0, message.size()), message) << refusal;
  };
  expect({}, "euler", {{"use_karas_sigmas", true}},
         "2 [scheduler_option] EulerDiscreteScheduler has no option 'use_karas_sigmas'; did you mean "
         "use_karras_sigmas? it has num_train_timesteps, beta_start, ");
  expect({}, "euler-a", {{"use_karras_sigmas", true}},
         "2 [scheduler_option] EulerAncestralDiscreteScheduler has no option 'use_karras_sigmas'; it has "
         "num_train_timesteps, ");
  expect({}, "euler", {{"use_karras_sigmas", "True"}},
         "2 [scheduler_option] 'use_karras_sigmas' must be true or false, got \"True\"");
  // Also of an option that this run would not read.
  expect({}, "dpm++", {{"flow_shift", "x"}}, "2 [scheduler_option] 'flow_shift' must be a number, got \"x\"");
  expect({}, "dpm++", {{"solver_order", 2.5}}, "2 [scheduler_option] 'solver_order' must be an integer");
  expect({}, "dpm++", {{"timestep_spacing", "even"}},
         "2 [scheduler_option] 'timestep_spacing' must be one of linspace, leading, trailing, got \"even\"");
  expect({}, "dpm++", {{"timestep_spacing", nullptr}},
         "2 [scheduler_option] 'timestep_spacing' must be a string, got null");
  expect({}, "dpm++", {{"thresholding", true}, {"sample_max_value", -1}},
         "2 [scheduler_option] 'sample_max_value' must be positive, got -1");
  expect({}, "sa-solver", {{"tau_func", "x"}}, "2 [scheduler_option] 'tau_func' is not supported; remove");
  expect({}, "dpm++", {{"num_train_timesteps", 0}},
         "2 [scheduler_option] 'num_train_timesteps' must be from 1 to");
  expect({}, "dpm++-karras", {{"use_karras_sigmas", false}},
         "2 [scheduler_option] use_karras_sigmas=false contradicts the ending -karras of scheduler; leave "
         "out one");
  expect({{"use_beta_sigmas", true}}, "dpm++", {{"use_karras_sigmas", true}},
         "2 [scheduler_option] set only one of use_karras_sigmas, ");
  // The file's own faults stay the file's.
  expect({{"beta_end", "x"}}, "dpm++", {{"solver_order", 3}}, "3 [file.json] 'beta_end' must be a number");
  EXPECT_EQ(refusal_of({{"beta_end", "x"}}, "dpm++", {{"beta_end", 0.01}}), "none");
  EXPECT_EQ(refusal_of({}, "ddim", {{"num_train_timesteps", 50}}, 60),
            "2 [num_inference_steps] must be at most 50 with ddim and the options of file.json and "
            "scheduler_option, got 60");
}

TEST(SamplerOptionsOfRequest, AreReadFromTexts) {
  EXPECT_EQ(
      parse_options({"a=true", "b=0.5", "c=word", "d=\"two words\"", "e=[1, 2]", "f=x=y", "g=", "h=null"}),
      Json({{"a", true},
            {"b", 0.5},
            {"c", "word"},
            {"d", "two words"},
            {"e", {1, 2}},
            {"f", "x=y"},
            {"g", ""},
            {"h", nullptr}}));
  EXPECT_EQ(parse_options({"lambda_min_clipped=-Infinity"}).at("lambda_min_clipped"), -INFINITY);
  const auto refusal = [](const std::vector<std::string>& texts) {
    try {
      parse_options(texts);
    } catch (const Error& error) {
      return fmt::format("{} {}", error.exit_code(), error.what());
    }
    return std::string("none");
  };
  for (const char* text : {"karras", "=1", ""})
    EXPECT_EQ(refusal({text}),
              fmt::format("2 [scheduler_option] expected KEY=VALUE, such as use_karras_sigmas=true, got '{}'",
                          text));
  EXPECT_EQ(refusal({"a=1", "a=1"}), "2 [scheduler_option] 'a' is given twice");
}

// So the table has the options of every class, each once and with a type.
TEST(SamplerOptionsOfRequest, AreKnownForEveryClass) {
  for (const SamplerName& known : known_samplers()) {
    Json all = Json::object();
    for (const std::string& option : options_of(known.class_name)) all[option] = nullptr;
    EXPECT_EQ(all.size(), options_of(known.class_name).size()) << known.class_name;
    EXPECT_TRUE(all.contains("num_train_timesteps")) << known.class_name;
    EXPECT_NO_THROW(check_options(known.class_name, all)) << known.class_name;
  }
}

TEST(SamplerNames, WithLevelsSetTheirOptionAlone) {
  const Json lu = {{"use_lu_lambdas", true}, {"use_beta_sigmas", true}};
  for (const char* name :
       {"euler", "dpm++", "dpm++-sde", "dpm++-singlestep", "unipc", "heun", "kdpm2-a", "lms"}) {
    for (const char* levels : {"karras", "exponential", "beta"}) {
      const std::string with_levels = fmt::format("{}-{}", name, levels);
      const Json option = {{fmt::format("use_{}_sigmas", levels), true}};
      const std::vector<float> expected = path_of(file_with(option), name, Json::object());
      EXPECT_EQ(path_of(file_with(lu), with_levels, Json::object()), expected) << with_levels;
      EXPECT_NE(path_of(file_with({}), name, Json::object()), expected) << with_levels;
      EXPECT_EQ(sampler_class(with_levels), sampler_class(name));
    }
  }
}

TEST(SamplerNames, OfOtherProgramsAreAnsweredWithTheNameHere) {
  for (const auto& [name, here] : std::vector<std::pair<std::string, std::string>>{
           {"DPM++ 2M Karras", "dpm++-karras"},
           {"dpmpp_2m_karras", "dpm++-karras"},
           {"dpm++2m", "dpm++"},
           {"DPM++ 2M SDE Exponential", "dpm++-sde-exponential"},
           {"dpmpp_2m_sde_gpu", "dpm++-sde"},
           {"DPM++ SDE Karras", "dpm++-singlestep-karras"},
           {"DPM2 a Karras", "kdpm2-a-karras"},
           {"euler_a", "euler-a"},
           {"k_euler_ancestral", "euler-a"},
           {"Euler a Karras", "euler-a"},  // the class has no such levels
           {"LMS Karras", "lms-karras"},
           {"uni_pc", "unipc"},
           {"PLMS", "pndm"}}) {
    EXPECT_TRUE(refusal_of({}, name, Json::object())
                    .starts_with(fmt::format(
                        "2 [scheduler] unknown sampler '{}'; did you mean {}? known are ddim", name, here)))
        << refusal_of({}, name, Json::object());
    EXPECT_EQ(refusal_of({}, here, Json::object()), "none") << here;
  }
  for (const char* name : {"ddim-karras", "-karras", "EulerDiscreteScheduler-karras"})
    EXPECT_EQ(refusal_of({}, name, Json::object()).find("2 [scheduler] unknown sampler"), 0U) << name;
}

}  // namespace
}  // namespace tessera::samplers
