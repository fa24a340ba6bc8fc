#include "serve/sdapi_samplers.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "core/text.h"
#include "samplers/options.h"
#include "samplers/sampler.h"

namespace tessera::serve {
namespace {

struct Sampler {
  std::string name;
  std::vector<std::string> aliases;
  std::string scheduler;       // the engine's
  std::string automatic = {};  // the schedule that AUTOMATIC1111 uses for it by default
  bool has_schedules = true;   // whether AUTOMATIC1111 lets it use other schedules
};

// The table does not include samplers that merely resemble one of AUTOMATIC1111's.
const std::vector<Sampler>& samplers_of_others() {
  static const std::vector<Sampler> table = {{"DPM++ 2M", {"k_dpmpp_2m"}, "dpm++", "karras"},
                                             {"Euler", {"k_euler", "euler"}, "euler"},
                                             {"Euler a", {"k_euler_a", "k_euler_ancestral"}, "euler-a"},
                                             {"DPM++ 2M SDE", {"k_dpmpp_2m_sde"}, "dpm++-sde", "exponential"},
                                             {"Heun", {"k_heun"}, "heun"},
                                             {"DPM2", {"k_dpm_2"}, "kdpm2", "karras"},
                                             {"DPM2 a", {"k_dpm_2_a"}, "kdpm2-a", "karras"},
                                             {"LMS", {"k_lms"}, "lms"},
                                             {"LCM", {"k_lcm"}, "lcm"},
                                             {"DDIM", {"ddim"}, "ddim", "", false},
                                             {"PLMS", {"plms"}, "pndm", "", false},
                                             {"UniPC", {"unipc"}, "unipc", "", false},
                                             {"Euler", {"k_euler", "euler", "flow-euler"}, "flow-euler"},
                                             {"Euler", {"k_euler", "euler", "edm-euler"}, "edm-euler"},
                                             {"DPM++ 2M", {"k_dpmpp_2m", "edm-dpm++"}, "edm-dpm++"}};
  return table;
}

bool is_flow(const ModelTraits& model) {
  return model.scheduler.starts_with("FlowMatch");
}

// The model's samplers: those of the table, and the engine's other samplers by their own names.
std::vector<Sampler> samplers_of(const ModelTraits& model) {
  const std::vector<std::string> names = samplers_for(model);
  std::vector<Sampler> all;
  std::ranges::copy_if(samplers_of_others(), std::back_inserter(all), [&](const Sampler& each) {
    return std::ranges::find(names, each.scheduler) != names.end();
  });
  for (const std::string& name : names) {
    if (std::ranges::find(all, name, &Sampler::scheduler) == all.end()) all.push_back({name, {}, name});
  }
  return all;
}

struct Schedule {
  std::string_view name, label;
  std::string_view levels;   // how the name of the sampler ends
  std::string_view spacing;  // the option timestep_spacing
};

constexpr std::array<Schedule, 9> kSchedules = {{{"automatic", "Automatic", "", ""},
                                                 {"uniform", "Uniform", "", "linspace"},
                                                 {"karras", "Karras", "karras", ""},
                                                 {"exponential", "Exponential", "exponential", ""},
                                                 {"sgm_uniform", "SGM Uniform", "", "trailing"},
                                                 {"simple", "Simple", "", "trailing"},
                                                 {"normal", "Normal", "", "linspace"},
                                                 {"ddim", "DDIM", "", "leading"},
                                                 {"beta", "Beta", "beta", ""}}};

const Schedule* find_schedule(std::string_view name) {
  for (const Schedule& each : kSchedules) {
    if (equal_names(name, each.name) || equal_names(name, each.label)) return &each;
  }
  return nullptr;
}

const Sampler* find_sampler(const std::vector<Sampler>& all, std::string_view name) {
  for (const Sampler& each : all) {
    const auto is_it = [&](const std::string& alias) { return equal_names(name, alias); };
    if (is_it(each.name) || is_it(each.scheduler) ||
        std::any_of(each.aliases.begin(), each.aliases.end(), is_it))
      return &each;
  }
  return nullptr;
}

// Splits "DPM++ 2M Karras" into the sampler and its schedule.
std::pair<std::string, const Schedule*> split_name(const std::string& name) {
  for (const Schedule& each : kSchedules) {
    for (const std::string_view ending : {each.label, each.name}) {
      if (name.size() <= ending.size() + 1) continue;
      const size_t at = name.size() - ending.size();
      if ((name[at - 1] == ' ' || name[at - 1] == '_') && equal_names(name.substr(at), ending))
        return {name.substr(0, at - 1), &each};
    }
  }
  return {name, nullptr};
}

[[noreturn]] void refuse_sampler(const std::string& name, const std::vector<Sampler>& all) {
  std::vector<std::string> names;
  for (const Sampler& each : all) names.push_back(each.name);
  throw ApiError(404, "HTTPException",
                 fmt::format("Sampler not found: '{}'; this model has {}", printable(cut_utf8(name, 60)),
                             names.empty() ? "its own alone" : fmt::format("{}", fmt::join(names, ", "))));
}

[[noreturn]] void refuse_schedule(const std::string& name, const std::string& why) {
  throw ApiError(422, "invalid_value", fmt::format("'scheduler' {}: {}", printable(cut_utf8(name, 60)), why),
                 "scheduler");
}

void apply(const Schedule& schedule, const Sampler& sampler, SamplerChoice& choice) {
  const std::string class_name = samplers::sampler_class(sampler.scheduler);
  const auto has = [&](const std::string& option) { return samplers::has_option(class_name, option); };
  const bool fits = (schedule.levels.empty() || has(fmt::format("use_{}_sigmas", schedule.levels))) &&
                    (schedule.spacing.empty() || has("timestep_spacing"));
  if (!fits || !sampler.has_schedules) {
    if (sampler.has_schedules)
      refuse_schedule(std::string(schedule.label), fmt::format("{} has no such schedule", sampler.name));
    choice.warning = fmt::format("scheduler {} has no effect with {}", schedule.label, sampler.name);
    return;
  }
  choice.schedule = schedule.label;
  if (!schedule.levels.empty()) choice.scheduler = fmt::format("{}-{}", sampler.scheduler, schedule.levels);
  if (!schedule.spacing.empty())
    choice.options.push_back(fmt::format("timestep_spacing={}", schedule.spacing));
}

const Sampler* own_sampler(const std::vector<Sampler>& all, const ModelTraits& model) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Sampler& each) {
    return samplers::sampler_class(each.scheduler) == model.scheduler;
  });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

SamplerChoice choose_sampler(const std::optional<std::string>& sampler,
                             const std::optional<std::string>& schedule, const ModelTraits& model) {
  const std::vector<Sampler> all = samplers_of(model);
  const Schedule* wanted = nullptr;
  if (schedule && !schedule->empty()) {
    wanted = find_schedule(*schedule);
    if (!wanted) {
      std::vector<std::string_view> labels;
      for (const Schedule& each : kSchedules) labels.push_back(each.label);
      refuse_schedule(*schedule, fmt::format("is not here; there are {}", fmt::join(labels, ", ")));
    }
  }
  const Sampler* found = nullptr;
  if (sampler && !sampler->empty()) {
    found = find_sampler(all, *sampler);
    if (!found) {
      const auto [name, joined] = split_name(*sampler);
      found = joined ? find_sampler(all, name) : nullptr;
      if (!found) refuse_sampler(*sampler, all);
      if (!wanted || wanted->name == "automatic") wanted = joined;
    }
  }
  const bool is_automatic = !wanted || wanted->name == "automatic";
  if (!found && is_automatic) {  // the model's own sampler, with the schedule in its file
    const Sampler* const own = own_sampler(all, model);
    return {.scheduler = {},
            .options = {},
            .sampler = own ? own->name : model.scheduler,
            .schedule = "Automatic",
            .warning = {}};
  }
  if (!found) found = own_sampler(all, model);
  if (!found) refuse_sampler(model.scheduler, all);
  SamplerChoice choice = {.scheduler = found->scheduler,
                          .options = {},
                          .sampler = found->name,
                          .schedule = "Automatic",
                          .warning = {}};
  if (is_automatic && !found->automatic.empty() && !model.has_flow_sigmas) {
    apply(*find_schedule(found->automatic), *found, choice);
  } else if (!is_automatic && !(is_flow(model) && (wanted->name == "simple" || wanted->name == "normal"))) {
    // Models of flow matching have that schedule in any case.
    apply(*wanted, *found, choice);
  }
  return choice;
}

OrderedJson sampler_list(const ModelTraits& model) {
  OrderedJson list = OrderedJson::array();
  for (const Sampler& each : samplers_of(model)) {
    OrderedJson options = OrderedJson::object();
    if (!each.automatic.empty()) options["scheduler"] = each.automatic;
    list.push_back({{"name", each.name}, {"aliases", each.aliases}, {"options", std::move(options)}});
  }
  return list;
}

OrderedJson schedule_list() {
  OrderedJson list = OrderedJson::array();
  for (const Schedule& each : kSchedules)
    list.push_back({{"name", each.name},
                    {"label", each.label},
                    {"aliases", nullptr},
                    {"default_rho", nullptr},
                    {"need_inner_model", nullptr}});
  return list;
}

}  // namespace tessera::serve
