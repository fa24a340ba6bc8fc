// Makes options of a command from tables of fields, and spells fields as the command line does.
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

// The column of a help in which descriptions begin.
inline constexpr size_t kHelpColumn = 38;

// Returns the option of a field, for spell(): "--height", "--no-shared-memory" for a flag that is off,
// "PROMPT".
std::string option_name(const std::string& field, std::optional<bool> value = std::nullopt);

// Returns the words that give these fields: "--use-cfg-parallel --ulysses-degree 4".
std::string options_text(const OrderedJson& fields);

// Returns the description of an option with the values that it allows, in lines.
std::string help_of(const FieldInfo& info);

// Fields of several tables.
using FieldList = std::vector<const FieldInfo*>;

// Adds the fields that `wants(info)`.
template <typename Struct, typename Wants>
void append(FieldList& list, const Fields<Struct>& fields, const Wants& wants) {
  for (const FieldInfo& info : fields) {
    if (wants(info)) list.push_back(&info);
  }
}

// The values of a command line: prompts, and the values of options. CLI11 gets the place of a value here
// instead of the value, so that it reads nothing that a user writes as an option, a list or a separator.
using Values = std::vector<std::string>;

// Collects the places of values and converts the values after CLI11 is done, so that every error has one
// form. The app must not outlive this object.
class FieldOptions {
 public:
  explicit FieldOptions(CLI::App& app) : app_(app) {}
  FieldOptions(const FieldOptions&) = delete;
  FieldOptions& operator=(const FieldOptions&) = delete;

  // The help shows the fields by their groups, those of one group in the order given; before them those named
  // in `common`, in that order.
  void add(FieldList fields, const std::vector<std::string>& common = {});

  // Returns the given options of these fields by their names, unchecked, from `values`, whose places CLI11
  // got.
  template <typename Struct>
  Json given(const Fields<Struct>& fields, const Values& values) const {
    Json all = Json::object();
    for (const FieldInfo& info : fields) {
      if (Json value = value_of(info, values); !value.is_null()) all[info.name] = std::move(value);
    }
    return all;
  }
  // Throws Error(kUsage).
  template <typename Struct>
  Struct read(const Fields<Struct>& fields, const Values& values) const {
    return read_fields(fields, given(fields, values));
  }

  // Returns whether the option takes a list of numbers. CLI11 would take a prompt after the list as one
  // more, so the numbers are joined into one word, "14 14".
  bool takes_list(const std::string& option) const;

  // The values of options that allow only some.
  const std::map<std::string, std::vector<std::string>>& choices() const { return choices_; }

 private:
  struct Given {
    std::optional<size_t> place;  // in the values
    std::vector<size_t> places;   // for FieldKind::kTexts
    std::optional<bool> flag;
  };
  void add_value(const FieldInfo& info, const std::string& group, Given& given);
  void add_flag(const FieldInfo& info, const std::string& group, Given& given);
  Json value_of(const FieldInfo& info, const Values& values) const;  // null if not given

  CLI::App& app_;
  std::map<std::string, Given> given_;  // by the field's name
  std::vector<std::string> lists_;      // options
  std::map<std::string, std::vector<std::string>> choices_;
};

// Returns how many words from `first` on are numbers.
size_t list_length(const std::vector<std::string>& words, size_t first);

}  // namespace tessera::cli
