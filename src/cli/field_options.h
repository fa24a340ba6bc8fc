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

// CLI11 takes a prompt in brackets for a list of words; a mark before it keeps it whole until it is read.
std::string guard_brackets(const std::string& text);

// The texts of options; they become values after CLI11 is done, so that every error has one form. An app with
// these options must not outlive them.
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

  // What was given of these fields. Throws Error(kUsage).
  template <typename Struct>
  Struct read(const Fields<Struct>& fields) const {
    Json given = Json::object();
    for (const FieldInfo& info : fields) {
      if (Json value = value_of(info); !value.is_null()) given[info.name] = std::move(value);
    }
    return read_fields(fields, given);
  }

  // Whether the option takes a list of integers. CLI11 would take the prompt behind it for one more: those
  // that follow it become one word, "14 14".
  bool takes_list(const std::string& option) const;

 private:
  struct Given {
    std::optional<std::string> text;
    std::vector<std::string> texts;  // of FieldKind::kTexts
    std::optional<bool> flag;
  };
  void add_flag(const FieldInfo& info, Given& given);
  Json value_of(const FieldInfo& info) const;  // null where nothing was given

  CLI::App& app_;
  std::map<std::string, Given> given_;  // by field
  std::vector<std::string> lists_;      // options
};

// How many of the words from `first` on are numbers of a list.
size_t list_length(const std::vector<std::string>& words, size_t first);

}  // namespace tessera::cli
