// Makes options of a command from tables of fields, has CLI11 parse them, and spells fields as the command
// line does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera::cli {

// The column of a help in which descriptions begin.
inline constexpr size_t kHelpColumn = 38;

// Returns the option of a field, for spell(): "--height"; "--no-shared-memory" for a flag that is off;
// "PROMPT".
std::string option_name(const std::string& field, std::optional<bool> value = std::nullopt);

// Returns the words that give these fields: "--use-cfg-parallel --ulysses-degree 4".
std::string options_text(const OrderedJson& fields);

// Fields of several tables.
using FieldList = std::vector<const FieldInfo*>;

// Adds the fields for which `wants(info)` is true.
template <typename Struct, typename Wants>
void append(FieldList& list, const Fields<Struct>& fields, const Wants& wants) {
  for (const FieldInfo& info : fields) {
    if (wants(info)) list.push_back(&info);
  }
}

template <typename... Structs>
FieldList fields_of(const Fields<Structs>&... tables) {
  FieldList list;
  (append(list, tables, [](const FieldInfo&) { return true; }), ...);
  return list;
}

// The options and operands of a command, and the values that CLI11 found for them. The app must not outlive
// this object.
class FieldOptions {
 public:
  explicit FieldOptions(CLI::App& app) : app_(app) {}
  FieldOptions(const FieldOptions&) = delete;
  FieldOptions& operator=(const FieldOptions&) = delete;

  // The help shows the fields by group, those of one group in the order given; the fields named in `common`
  // come first, in that order.
  void add(FieldList fields, const std::vector<std::string>& common = {});
  // Adds a field that is given by words without an option: by one word, or by all remaining ones.
  void add_operand(const FieldInfo& info);

  // Has CLI11 parse the words after the command's name. Returns the text that they request, as --help does,
  // if any. Throws Error(kUsage).
  std::optional<std::string> parse(const std::vector<std::string>& arguments);

  // Returns the given options of these fields by field name, unchecked.
  template <typename Struct>
  Json given(const Fields<Struct>& fields) const {
    Json all = Json::object();
    for (const FieldInfo& info : fields) {
      if (Json value = value_of(info); !value.is_null()) all[info.name] = std::move(value);
    }
    return all;
  }
  // Throws Error(kUsage).
  template <typename Struct>
  Struct read(const Fields<Struct>& fields) const {
    return read_fields(fields, given(fields));
  }

  // The field that an option sets; nullptr for --help.
  const FieldInfo* field_of(const CLI::Option& option) const;

 private:
  // The arguments as words that CLI11 reads with the intended meaning.
  std::vector<std::string> words(const std::vector<std::string>& arguments) const;
  // Refuses a word that would become a prompt but is hardly meant as one, as in `--use-cfg-parallel 2` and
  // `--negative-prompt blue green`.
  void require_meant_prompts() const;
  // Names the nearest option, the equivalent here of another program's option, or what is not supported yet.
  [[noreturn]] void refuse_unknown(const std::string& word) const;

  CLI::Option& add_value(const FieldInfo& info, const std::string& names);
  void add_flag(const FieldInfo& info, const std::string& group);
  Json value_of(const FieldInfo& info) const;  // null if not given

  CLI::App& app_;
  std::map<const CLI::Option*, const FieldInfo*> fields_;
};

}  // namespace tessera::cli
