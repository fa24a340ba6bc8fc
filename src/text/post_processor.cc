#include "text/post_processor.h"

#include "core/error.h"
#include "text/tokenizer_parts.h"

namespace tessera::text {
namespace {

// ["</s>", 2]
int64_t parse_token_id(const JsonConfig& part, const std::string& key) {
  const bool pair = part.has(key) && part.values()[key].is_array() && part.values()[key].size() == 2;
  if (!pair || !part.values()[key][1].is_number_integer()) part.fail(key, "an array of a token and its id");
  return part.values()[key][1].get<int64_t>();
}

// {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids":
// [1]}}}
SurroundingIds parse_template(const JsonConfig& part) {
  if (!part.has("single") || !part.values()["single"].is_array()) part.fail("single", "an array");
  SurroundingIds ids;
  int num_texts = 0;
  for (const Json& value : part.values()["single"]) {
    const JsonConfig piece(value, part.where());
    if (piece.has("Sequence")) {
      if (JsonConfig(piece.values()["Sequence"], part.where()).string("id") != "A") num_texts = 2;
      ++num_texts;
      continue;
    }
    if (!piece.has("SpecialToken")) part.fail("single", "an array of SpecialToken and Sequence");
    const std::string token = JsonConfig(piece.values()["SpecialToken"], part.where()).string("id");
    const JsonConfig tokens(part.values().value("special_tokens", Json::object()), part.where());
    if (!tokens.has(token)) part.fail("special_tokens", "an object that has '" + token + "'");
    for (const int64_t id : JsonConfig(tokens.values()[token], part.where()).integers("ids"))
      (num_texts == 0 ? ids.before : ids.after).push_back(id);
  }
  if (num_texts != 1) part.fail("single", "an array with one Sequence 'A'");
  return ids;
}

SurroundingIds parse_one(const JsonConfig& part) {
  const std::string type = part.string("type");
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return parse_template(part);
  if (type == "RobertaProcessing" || type == "BertProcessing")
    return {{parse_token_id(part, "cls")}, {parse_token_id(part, "sep")}};
  unsupported_part(part);
}

}  // namespace

SurroundingIds parse_post_processor(const Json& description, const std::string& where) {
  SurroundingIds result;
  for (const JsonConfig& part : parse_parts(description, "processors", where)) {
    const SurroundingIds ids = parse_one(part);
    result.before.insert(result.before.begin(), ids.before.begin(), ids.before.end());
    result.after.insert(result.after.end(), ids.after.begin(), ids.after.end());
  }
  return result;
}

}  // namespace tessera::text
