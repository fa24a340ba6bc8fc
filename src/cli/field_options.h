// Options of a command from tables of fields, and fields as the command line spells them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"

namespace CLI {
class App;
}

namespace tessera::cli {

// The option of a field, for spell(): "--height", "--no-shared-memory" for a flag that is off, "PROMPT".
std::string option_name(const std::string& field, std::optional<bool> value = std::nullopt);

// The values of a command line: prompts, and what options take. CLI11 gets the place of a value here instead
// of the value, so that nothing that a user writes is an option, a list or a separator to it.
using Values = std::vector<std::string>;

// The options of fields. What they were given is read after CLI11 is done, so that every error has one form.
// An app with these options must not outlive them.
class FieldOptions {
 public:
  explicit FieldOptions(CLI::App& app) : app_(app) {}
  FieldOptions(const FieldOptions&) = delete;
  FieldOptions& operator=(const FieldOptions&) = delete;

  void add(const FieldInfo& info);
  // All fields that `wants(info)`.
  template <typename Struct, typename Wants>
  void add(const Fields<Struct>& fields, const Wants& wants) {
    for (const FieldInfo& info : fields) {
      if (wants(info)) add(info);
    }
  }

  // What was given of these fields; CLI11 has got places in `values`. Throws Error(kUsage).
  template <typename Struct>
  Struct read(const Fields<Struct>& fields, const Values& values) const {
    Json given = Json::object();
    for (const FieldInfo& info : fields) {
      if (Json value = value_of(info, values); !value.is_null()) given[info.name] = std::move(value);
    }
    return read_fields(fields, given);
  }

  // Whether the option takes a list of integers. CLI11 would take the prompt behind it for one more: those
  // that follow it become one word, "14 14".
  bool takes_list(const std::string& option) const;

 private:
  struct Given {
    std::optional<size_t> place;  // among the values
    std::vector<size_t> places;   // of FieldKind::kTexts
    std::optional<bool> flag;
  };
  void add_flag(const FieldInfo& info, Given& given);
  // Null where nothing was given.
  Json value_of(const FieldInfo& info, const Values& values) const;

  CLI::App& app_;
  std::map<std::string, Given> given_;  // by field
  std::vector<std::string> lists_;      // options
};

// How many of the words from `first` on are numbers of a list.
size_t list_length(const std::vector<std::string>& words, size_t first);

}  // namespace tessera::cli
