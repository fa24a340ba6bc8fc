#include "cli/field_options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/text.h"

namespace tessera::cli {
namespace {

// The options that also have a letter.
const std::map<std::string, std::string> kLetters = {{"output", "-o,"}, {"quiet", "-q,"}};

// More words than any command line has. CLI11 passes to an operand that takes at least this many all
// remaining words unchanged; to an operand that takes any number, it would pass the parts of a word such as
// "[a, b]".
constexpr int kAllWords = 1 << 28;

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// The negated option is "--no-resolution-binning", not "--no-use-resolution-binning".
std::string without_use(const std::string& name) {
  return name.starts_with("use_") ? name.substr(4) : name;
}

// Returns the number, or the text if it is not one; check_value() then reports what is expected.
template <typename Number>
Json number_in(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end ? Json(value) : Json(text);
}

// Reads "14 14" and "14,14".
template <typename Number>
Json numbers_in(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  Json numbers = Json::array();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) numbers.push_back(number_in<Number>(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers.empty() ? Json(text) : numbers;
}

// "14", "-1", "2.5"
bool is_number(const std::string& word) {
  const bool begins = word.find_first_of("0123456789") <= word.find_first_not_of("-.");
  return begins && number_in<double>(word).is_number();
}

std::string title(FieldGroup group) {
  switch (group) {
    case FieldGroup::kPrompt:
      return "Prompt";
    case FieldGroup::kImage:
      return "Image";
    case FieldGroup::kVideo:
      return "Video";
    case FieldGroup::kSampling:
      return "Sampling";
    case FieldGroup::kModel:
      return "Model";
    case FieldGroup::kOutput:
      return "Output";
    case FieldGroup::kMemory:
      return "Memory";
    case FieldGroup::kMachine:
      return "Machine";
    case FieldGroup::kDegrees:
      return "Parallel degrees";
    case FieldGroup::kParallel:
      return "Parallel methods";
    case FieldGroup::kLaunch:
      return "Launch and messages";
    case FieldGroup::kServer:
      return "Server";
    case FieldGroup::kLimits:
      return "Limits of a server";
  }
  return "";
}

// The position of a group in the help: options only for videos come after those for both.
int place(FieldGroup group) {
  if (group == FieldGroup::kSampling) return static_cast<int>(FieldGroup::kVideo);
  if (group == FieldGroup::kVideo) return static_cast<int>(FieldGroup::kSampling);
  return static_cast<int>(group);
}

// Breaks lines between words, so that the help is at most 110 columns wide.
std::string wrapped(std::string text) {
  constexpr size_t kWidth = 110 - kHelpColumn;
  for (size_t begin = 0; text.size() - begin > kWidth;) {
    const size_t space = text.rfind(' ', begin + kWidth);
    if (space == std::string::npos || space <= begin) break;
    text[space] = '\n';
    begin = space + 1;
  }
  return text;
}

std::string help_of(const FieldInfo& info) {
  const std::string allowed = allowed_values(info);
  return wrapped(allowed.empty() ? info.help : fmt::format("{}; {}", info.help, allowed));
}

std::string names_of(const FieldInfo& info) {
  const auto letter = kLetters.find(info.name);
  return (letter == kLetters.end() ? "" : letter->second) + "--" + dashed(info.name);
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

// "-qo": several letters, the first of which is a flag.
bool is_cluster(const std::string& word, const CLI::App& app) {
  if (word.size() < 3 || word[0] != '-' || word[1] == '-' || word[2] == '=') return false;
  const CLI::Option* const flag = app.get_option_no_throw(word.substr(0, 2));
  return flag && !takes_value(*flag);
}

bool is_list(const FieldInfo* info) {
  return info && (info->kind == FieldKind::kIntegers || info->kind == FieldKind::kNumbers);
}

// Whether a word after a flag is unlikely to be a prompt: "2", "true".
bool is_setting(const std::string& word) {
  static const std::vector<std::string> switches = {"true", "false", "yes", "no", "on", "off"};
  return is_number(word) || std::find(switches.begin(), switches.end(), word) != switches.end();
}

bool begins_with_foreign_dash(const std::string& word) {
  const std::vector<std::string_view> dashes = {"\u2014", "\u2013", "\u2012", "\u2212"};
  return std::any_of(dashes.begin(), dashes.end(), [&](std::string_view dash) {
    return word.starts_with(dash) && std::isalpha(static_cast<unsigned char>(word[dash.size()])) != 0 &&
           word.find(' ') == std::string::npos;
  });
}

// The names of options in other programs.
const std::map<std::string, std::string> kOtherNames = {{"--steps", "--num-inference-steps"},
                                                        {"--sampling-steps", "--num-inference-steps"},
                                                        {"-s", "--num-inference-steps"},
                                                        {"--cfg", "--guidance-scale"},
                                                        {"--cfg-scale", "--guidance-scale"},
                                                        {"--sampler", "--scheduler"},
                                                        {"--sampling-method", "--scheduler"},
                                                        {"--negative", "--negative-prompt"},
                                                        {"--neg-prompt", "--negative-prompt"},
                                                        {"--fp16", "--dtype"},
                                                        {"--half", "--dtype"},
                                                        {"--bf16", "--dtype"},
                                                        {"--size", "--height"},
                                                        {"--image-size", "--height"},
                                                        {"--num-steps", "--num-inference-steps"},
                                                        {"--ddim-steps", "--num-inference-steps"},
                                                        {"--n-samples", "--num-images-per-prompt"},
                                                        {"--n-iter", "--num-images-per-prompt"},
                                                        {"--num-images", "--num-images-per-prompt"},
                                                        {"--batch-count", "--num-images-per-prompt"},
                                                        {"--ckpt", "--model"},
                                                        {"--checkpoint", "--model"},
                                                        {"--model-path", "--model"},
                                                        {"--outdir", "--output"},
                                                        {"--out", "--output"},
                                                        {"--enable-vae-tiling", "--vae-tiling"},
                                                        {"--use-karras-sigmas", "--scheduler-option"},
                                                        {"--karras", "--scheduler-option"},
                                                        {"--nproc-per-node", "--nproc"},
                                                        {"--cpu", "--device"},
                                                        {"--gpu", "--device"},
                                                        {"--cuda", "--device"},
                                                        {"--prompt2", "--prompt-2"},
                                                        {"--negative-prompt2", "--negative-prompt-2"},
                                                        {"--eta-noise", "--eta"},
                                                        {"-n", "--negative-prompt"},
                                                        {"-p", "--prompt"},
                                                        {"-m", "--model"},
                                                        {"-W", "--width"},
                                                        {"-H", "--height"},
                                                        {"--batch-size", "--num-images-per-prompt"},
                                                        {"--precision", "--dtype"},
                                                        {"--type", "--dtype"},
                                                        {"--trace", "--timeline"},
                                                        {"--tp", "--tensor-parallel-degree"},
                                                        {"-t", "--threads"}};

// Options of other programs for things that are not supported here yet.
const std::map<std::string, std::string> kNotHere = {{"--lora", "LoRA files"},
                                                     {"--lora-scale", "LoRA files"},
                                                     {"--lora-dir", "LoRA files"},
                                                     {"--image", "images to begin from"},
                                                     {"--init-image", "images to begin from"},
                                                     {"--init-img", "images to begin from"},
                                                     {"--img2img", "images to begin from"},
                                                     {"--strength", "images to begin from"},
                                                     {"--mask", "inpainting"},
                                                     {"--mask-image", "inpainting"},
                                                     {"--inpaint", "inpainting"},
                                                     {"--controlnet", "ControlNet"},
                                                     {"--control-net", "ControlNet"},
                                                     {"--control-image", "ControlNet"},
                                                     {"--ip-adapter", "IP-Adapter"},
                                                     {"--embeddings", "embedding files"},
                                                     {"--textual-inversion", "embedding files"},
                                                     {"--vae", "a VAE of its own"},
                                                     {"--latents", "latents to begin from"}};

}  // namespace

std::string options_text(const OrderedJson& fields) {
  std::vector<std::string> words;
  for (const auto& [name, value] : fields.items()) {
    if (value.is_boolean()) {
      words.push_back(option_name(name, value.get<bool>()));
    } else {
      words.push_back(fmt::format("{} {}", option_name(name),
                                  value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string option_name(const std::string& field, std::optional<bool> value) {
  if (field == "prompt") return "PROMPT";
  if (value == false) return "--no-" + dashed(without_use(field));
  return "--" + dashed(field);
}

void FieldOptions::add(FieldList fields, const std::vector<std::string>& common) {
  const auto common_place = [&](const FieldInfo* info) {
    return std::find(common.begin(), common.end(), info->name) - common.begin();
  };
  std::stable_sort(fields.begin(), fields.end(), [&](const FieldInfo* a, const FieldInfo* b) {
    return std::pair(common_place(a), place(a->group)) < std::pair(common_place(b), place(b->group));
  });
  for (const FieldInfo* info : fields) {
    const std::string group = common_place(info) < std::ssize(common) ? "Common options" : title(info->group);
    if (info->name == "prompt") add_operand(*info);
    if (info->kind == FieldKind::kFlag) {
      add_flag(*info, group);
    } else {
      add_value(*info, names_of(*info)).group(group);
    }
  }
}

void FieldOptions::add_operand(const FieldInfo& info) {
  std::string name = info.name;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  CLI::Option& option = add_value(info, name);
  if (info.kind == FieldKind::kTexts) option.expected(kAllWords, -1)->allow_extra_args(false);
}

CLI::Option& FieldOptions::add_value(const FieldInfo& info, const std::string& names) {
  const std::string help = help_of(info);
  CLI::Option& option = *app_.add_option(names, help)->type_name(info.unit);
  fields_[&option] = &info;
  // If a number is given several times, the last one counts, as in scripts that append to a command line; but
  // a file is never ignored silently.
  const bool is_file = info.name == "prompt_file" || info.name == "request" || info.name == "output";
  option.multi_option_policy(info.kind == FieldKind::kTexts ? CLI::MultiOptionPolicy::TakeAll
                             : is_file                      ? CLI::MultiOptionPolicy::Throw
                                                            : CLI::MultiOptionPolicy::TakeLast);
  // Words after the value of another option are prompts, if the command takes prompts.
  option.allow_extra_args(info.kind == FieldKind::kTexts && info.unit.ends_with("..."));
  return option;
}

void FieldOptions::add_flag(const FieldInfo& info, const std::string& group) {
  const auto add = [&](const std::string& names, const std::string& help) {
    fields_[app_.add_flag(names, help)->group(group)] = &info;
  };
  if (!info.is_on) add(names_of(info), help_of(info));
  if (!info.is_on && !info.may_miss) return;
  std::string names = option_name(info.name, false);
  if (without_use(info.name) != info.name) names += ",--no-" + dashed(info.name);
  add(names, wrapped(info.help_off));
}

std::optional<std::string> FieldOptions::parse(const std::vector<std::string>& arguments) {
  const std::string name = app_.get_name(), program = app_.get_parent() ? app_.get_parent()->get_name() : "";
  std::vector<std::string> reversed = words(arguments);
  std::reverse(reversed.begin(), reversed.end());  // the order that CLI11 expects
  try {
    app_.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return app_.help(program);
  } catch (const CLI::CallForVersion& version) {
    return version.what();
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> left = app_.remaining();
    const auto operands = std::find(left.begin(), left.end(), "--");
    for (auto word = left.begin(); word != operands; ++word) {
      if (word->starts_with("-") && *word != "-") refuse_unknown(*word);
    }
    usage_error(printable(left.front() == "--" ? left.at(1) : left.front()),
                "one argument too many; see tessera {} --help", name);
  } catch (const CLI::ArgumentMismatch& error) {
    // "--seed: 1 required N missing", or "--output: At Most 1 required but received 2"
    const std::string what = error.what();
    usage_error(what.substr(0, what.find(':')), "{}; see tessera {} --help",
                what.find("received") != std::string::npos ? "is given more than once" : "needs a value",
                name);
  } catch (const CLI::ParseError& error) {
    usage_error("command line", "{}; see tessera {} --help", error.what(), name);
  }
  require_meant_prompts();
  return std::nullopt;
}

// CLI11 parses the command line, except for the following: dashes in names may be underscores, as in xDiT;
// "--name=" gives an empty value, "-o=FILE" gives FILE, and "--flag=x" is refused; a list ends where the
// numbers after its option end. Values are left alone, whatever they look like. Words after "--" are prompts,
// without the check for accidental prompts.
std::vector<std::string> FieldOptions::words(const std::vector<std::string>& arguments) const {
  std::vector<std::string> words;
  const auto end = arguments.end();
  for (auto argument = arguments.begin(); argument != end; ++argument) {
    if (*argument == "--" && app_.get_option_no_throw("--prompt")) {
      while (++argument != end) words.insert(words.end(), {"--prompt", *argument});
      break;
    }
    std::string word = *argument;
    for (; is_cluster(word, app_); word.erase(1, 1)) words.push_back(word.substr(0, 2));
    const size_t equals = word.find('=');
    const std::string name = dashed(word.substr(0, equals));
    const CLI::Option* const option = name.starts_with("-") ? app_.get_option_no_throw(name) : nullptr;
    words.push_back(option ? name : word);
    if (!option) continue;  // an operand, "-oFILE", or unknown
    if (equals != std::string::npos) {
      const std::string value = word.substr(equals + 1);
      if (!takes_value(*option)) usage_error(name, "takes no value, got '{}'", printable(value));
      words.push_back(value);
    } else if (takes_value(*option) && argument + 1 != end) {
      words.push_back(*++argument);
      const auto goes_on = [&] {
        return argument + 1 != end && is_number(*argument) && is_number(*(argument + 1));
      };
      while (is_list(field_of(*option)) && goes_on()) words.back() += " " + *++argument;
    }
  }
  return words;
}

void FieldOptions::require_meant_prompts() const {
  const CLI::Option* const prompt = app_.get_option_no_throw("PROMPT");
  const CLI::Option* before = nullptr;
  size_t count = 0;
  for (const CLI::Option* option : app_.parse_order()) {
    const CLI::Option* const given = std::exchange(before, option);
    if (option != prompt) continue;
    const std::string& word = prompt->results().at(count++);
    if (word == "-")
      usage_error(field("prompt"), "a lone - is not a prompt; {} - reads prompts from standard input",
                  field("prompt_file"));
    if (word.starts_with("-")) refuse_unknown(word);  // such as "-.5", which CLI11 takes for an operand
    if (begins_with_foreign_dash(word))
      usage_error(field("prompt"),
                  "'{}' begins with a dash that is not the one on the keyboard; options begin with --",
                  printable(word));
    if (!given || given == prompt) continue;
    if (!takes_value(*given) && is_setting(word))
      usage_error(given->get_name(), "takes no value, got '{}'; a prompt that looks like a value goes first",
                  word);
    const bool is_single_word = !word.empty() && word.find(' ') == std::string::npos;
    if (takes_value(*given) && count > 1 && is_single_word)
      usage_error(
          given->get_name(),
          "takes one value; '{}' after it would be one more prompt: put quotes round a text of several "
          "words, and all prompts in one place",
          printable(word));
  }
}

void FieldOptions::refuse_unknown(const std::string& word) const {
  const std::string option = dashed(printable(word.substr(0, word.find('='))));
  const std::string help = fmt::format("see tessera {} --help", app_.get_name());
  if (const auto missing = kNotHere.find(option); missing != kNotHere.end())
    usage_error(option, "not supported yet ({}); {}", missing->second, help);
  std::vector<std::string> known;
  for (const CLI::Option* each : app_.get_options()) {
    for (const std::string& name : each->get_lnames()) known.push_back("--" + name);
  }
  const auto other = kOtherNames.find(option.starts_with("--") ? option : option.substr(0, 2));
  const bool has_other =
      other != kOtherNames.end() && std::find(known.begin(), known.end(), other->second) != known.end();
  if (const auto nearest = has_other ? other->second : nearest_word(option, known))
    usage_error(option, "unknown option; did you mean {}? ({})", *nearest, help);
  usage_error(option, "unknown option; {}", help);
}

const FieldInfo* FieldOptions::field_of(const CLI::Option& option) const {
  const auto found = fields_.find(&option);
  return found == fields_.end() ? nullptr : found->second;
}

Json FieldOptions::value_of(const FieldInfo& info) const {
  std::vector<std::string> texts;  // in the order of the command line
  const CLI::Option* last = nullptr;
  std::map<const CLI::Option*, size_t> counts;
  for (const CLI::Option* option : app_.parse_order()) {
    if (field_of(*option) != &info) continue;
    texts.push_back(option->results().at(counts[option]++));
    last = option;
  }
  if (!last) return {};
  const std::string& text = texts.back();
  switch (info.kind) {
    case FieldKind::kFlag:
      return last->check_lname(dashed(info.name));
    case FieldKind::kInteger:
      return number_in<int64_t>(text);
    case FieldKind::kSeed:
      return number_in<uint64_t>(text);
    case FieldKind::kNumber:
      return number_in<double>(text);
    case FieldKind::kTexts:
      return texts;
    case FieldKind::kIntegers:
      return numbers_in<int64_t>(text);
    case FieldKind::kNumbers:
      return numbers_in<double>(text);
    default:
      return text;
  }
}

}  // namespace tessera::cli
