// A table of the fields of a struct, which reads and writes the struct as JSON and checks it. Front ends
// derive their options and help from it, so that a field is declared only once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace tessera {

enum class FieldKind { kFlag, kInteger, kSeed, kNumber, kText, kTexts, kIntegers, kNumbers };

// The help shows fields by group, in this order.
enum class FieldGroup {
  kPrompt,
  kImage,
  kVideo,
  kSampling,
  kModel,
  kOutput,
  kMemory,
  kMachine,
  kDegrees,  // the degrees of parallelism, which alone determine the mesh
  kParallel,
  kLaunch,
  kServer,
  kLimits
};

// Between which requests the values of a field may differ.
enum class FieldScope {
  kPicture,  // each picture of a batch may have its own value
  kBatch,    // all requests of a batch have the same value
  kRank      // likewise, but the field determines where ranks compute, not what
};

// What a front end needs to know about a field.
struct FieldInfo {
  std::string name;  // in JSON; diffusers' name if it has one
  std::string help;  // one line, with the default in brackets; allowed_values() is not included
  FieldGroup group;
  std::string unit{};  // what a value means, in capitals: "PIXELS"
  // Inclusive bounds of integers and numbers.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices{};  // allowed texts; empty: any text
  FieldKind kind = FieldKind::kText;   // follows from the member's type
  bool may_miss = false;               // null or leaving it out means that it is chosen later
  bool is_on = false;                  // a flag that is true by default
  std::string help_off{};              // one line about the effect of turning a flag off
  FieldScope scope = FieldScope::kBatch;
};

// Returns the range or the choices of a field: "from 1 to 64 pixels", "1 or more" or "1d or 2d"; empty if it
// has neither.
std::string allowed_values(const FieldInfo& info);

// Throws Error(kUsage) naming the field, the value and what is allowed. A list of one element may be given as
// the element.
void check_value(const FieldInfo& info, const Json& value);

template <typename Struct>
struct Field : FieldInfo {
  // `get` returns null for a field that is left out and for an empty list; `set` accepts what check_value()
  // accepts; `clear` leaves the field out.
  std::function<Json(const Struct&)> get;
  std::function<void(Struct&, const Json&)> set;
  std::function<void(Struct&)> clear;
};

template <typename Struct>
using Fields = std::vector<Field<Struct>>;

namespace detail {

template <typename T>
struct Unwrapped {
  using Type = T;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using Type = T;
};

template <typename T>
constexpr FieldKind kind_of() {
  if constexpr (std::is_same_v<T, bool>) return FieldKind::kFlag;
  if constexpr (std::is_same_v<T, uint64_t>) return FieldKind::kSeed;
  if constexpr (std::is_integral_v<T>) return FieldKind::kInteger;
  if constexpr (std::is_floating_point_v<T>) return FieldKind::kNumber;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return FieldKind::kTexts;
  if constexpr (std::is_same_v<T, std::vector<int64_t>>) return FieldKind::kIntegers;
  if constexpr (std::is_same_v<T, std::vector<double>>) return FieldKind::kNumbers;
  return FieldKind::kText;
}

// Throws Error(kUsage) for an unknown field; the message lists the `known` fields.
[[noreturn]] void refuse_unknown_field(const std::string& name, const std::vector<std::string>& known);
const Json& require_object(const Json& json);

}  // namespace detail

// A field that is a text in JSON: `write` and `read` convert from and to the member's type; `read` may throw.
template <typename Struct, typename Member, typename Write, typename Read>
Field<Struct> text_field(Member Struct::*member, FieldInfo info, Write write, Read read) {
  using Value = typename detail::Unwrapped<Member>::Type;
  info.kind = FieldKind::kText;
  info.may_miss = !std::is_same_v<Value, Member>;
  const auto get = [member, write](const Struct& from) -> Json {
    if constexpr (!std::is_same_v<Value, Member>) {
      return from.*member ? Json(write(*(from.*member))) : Json();
    } else {
      return write(from.*member);
    }
  };
  const auto set = [member, read](Struct& to, const Json& value) {
    to.*member = read(value.template get<std::string>());
  };
  return {std::move(info), get, set, [member](Struct& from) { from.*member = Struct().*member; }};
}

// A field that is one of several named values.
template <typename Struct, typename Member, typename Value>
Field<Struct> choice_field(Member Struct::*member, FieldInfo info,
                           const std::vector<std::pair<std::string, Value>>& values) {
  for (const auto& [name, value] : values) info.choices.push_back(name);
  return text_field(
      member, std::move(info),
      [values](const Value& wanted) {
        for (const auto& [name, value] : values) {
          if (value == wanted) return name;
        }
        return std::string("?");
      },
      [values](const std::string& wanted) {
        for (const auto& [name, value] : values) {
          if (name == wanted) return value;
        }
        return values.front().second;
      });
}

// A flag, number, text or list, or an optional one of these. `help_off` describes a flag that can be turned
// off.
template <typename Struct, typename Member>
Field<Struct> plain_field(Member Struct::*member, FieldInfo info, std::string help_off = {}) {
  using Value = typename detail::Unwrapped<Member>::Type;
  info.kind = detail::kind_of<Value>();
  info.may_miss = !std::is_same_v<Value, Member>;
  if constexpr (std::is_same_v<Member, bool>) info.is_on = Struct().*member;
  info.help_off = std::move(help_off);
  const auto get = [member](const Struct& from) -> Json {
    if constexpr (!std::is_same_v<Value, Member>) {
      return from.*member ? Json(*(from.*member)) : Json();
    } else if constexpr (detail::kind_of<Value>() >= FieldKind::kTexts) {
      return (from.*member).empty() ? Json() : Json(from.*member);
    } else {
      return from.*member;
    }
  };
  const auto set = [member](Struct& to, const Json& value) {
    constexpr bool is_list = detail::kind_of<Value>() >= FieldKind::kTexts;
    to.*member = (is_list && !value.is_array() ? Json::array({value}) : value).template get<Value>();
  };
  return {std::move(info), get, set, [member](Struct& from) { from.*member = Struct().*member; }};
}

// A field whose scope is not that of the batch.
template <typename Struct>
Field<Struct> with_scope(FieldScope scope, Field<Struct> field) {
  field.scope = scope;
  return field;
}

// A field in which the requests of a batch may differ.
template <typename Struct>
Field<Struct> of_picture(Field<Struct> field) {
  return with_scope(FieldScope::kPicture, std::move(field));
}

// Appends the fields of a member to those of the struct that holds it.
template <typename Struct, typename Member>
void add_fields(Fields<Struct>& all, Member Struct::*member, const Fields<Member>& fields) {
  for (const Field<Member>& each : fields)
    all.push_back({each, [=](const Struct& from) { return each.get(from.*member); },
                   [=](Struct& to, const Json& value) { each.set(to.*member, value); },
                   [=](Struct& from) { each.clear(from.*member); }});
}

// Throws as check_value() does.
template <typename Struct>
void check_fields(const Fields<Struct>& fields, const Struct& from) {
  for (const Field<Struct>& each : fields) {
    if (const Json value = each.get(from); !value.is_null()) check_value(each, value);
  }
}

// Writes all fields except those that are left out, in the order of the table.
template <typename Struct>
OrderedJson write_fields(const Fields<Struct>& fields, const Struct& from) {
  OrderedJson json = OrderedJson::object();
  for (const Field<Struct>& each : fields) {
    if (Json value = each.get(from); !value.is_null()) json[each.name] = std::move(value);
  }
  return json;
}

// Fields that are left out keep the struct's defaults. Throws Error(kUsage) for a field that is unknown, of
// another type or out of range.
template <typename Struct>
Struct read_fields(const Fields<Struct>& fields, const Json& json) {
  Struct result;
  std::vector<std::string> names;
  for (const Field<Struct>& each : fields) {
    names.push_back(each.name);
    const auto found = detail::require_object(json).find(each.name);
    if (found == json.end() || (found->is_null() && each.may_miss)) continue;
    check_value(each, *found);
    each.set(result, *found);
  }
  for (const auto& [name, value] : json.items()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) detail::refuse_unknown_field(name, names);
  }
  return result;
}

}  // namespace tessera
