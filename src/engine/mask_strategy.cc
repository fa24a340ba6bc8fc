#include "engine/mask_strategy.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <type_traits>

#include "core/counted.h"
#include "core/error.h"
#include "core/field_name.h"

namespace tessera::engine {
namespace {

constexpr size_t kNumbers = 6;

std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(mark, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

template <typename Number>
Number read(std::string_view text, const std::string& group, const std::string& field) {
  const auto is_space = [](char c) { return c == ' '; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    usage_error(field, "'{}' holds '{}' where a {}number is expected", group, text,
                std::is_integral_v<Number> ? "whole " : "");
  return number;
}

GivenRange read_group(std::string_view text, const std::string& field) {
  const std::string group(text);
  const std::vector<std::string_view> words = split(text, ',');
  if (words.size() > kNumbers)
    usage_error(field,
                "'{}' has {} numbers, at most {}: loop, reference, its start, start, length, edit ratio",
                group, words.size(), kNumbers);
  GivenRange range;
  int64_t* const integers[] = {&range.loop, &range.reference, &range.reference_start, &range.target_start,
                               &range.length};
  for (size_t i = 0; i < words.size(); ++i) {
    if (i + 1 < kNumbers) {
      *integers[i] = read<int64_t>(words[i], group, field);
    } else {
      range.edit = read<double>(words[i], group, field);
    }
  }
  if (range.loop < 0) usage_error(field, "'{}': parts are counted from 0", group);
  if (range.length < 1) usage_error(field, "'{}': its length must be 1 or more, got {}", group, range.length);
  if (!(range.edit >= 0 && range.edit <= 1))
    usage_error(field, "'{}': its edit ratio must be from 0 to 1, got {}", group, range.edit);
  return range;
}

// The nearest multiple of `unit`, the lower one of two, before `end`.
int64_t aligned(int64_t value, int64_t unit, int64_t end) {
  int64_t multiple = value / unit;
  if (2 * (value % unit) > unit && multiple < end / unit - 1) ++multiple;
  return multiple * unit;
}

// Where a range starts among `frames` frames.
int64_t start_of(int64_t start, int64_t frames, std::optional<int64_t> align, const char* of) {
  const int64_t from_begin = start < 0 ? frames + start : start;
  if (from_begin < 0 || from_begin >= frames)
    usage_error(field("mask_strategy"), "{} is not a frame of {}, which has {}", start, of,
                counted(frames, "latent frame"));
  return align ? aligned(from_begin, *align, frames) : from_begin;
}

}  // namespace

std::vector<GivenRange> parse_mask_strategy(const std::string& text, const std::string& field) {
  std::vector<GivenRange> ranges;
  if (text.empty()) return ranges;
  for (const std::string_view group : split(text, ';')) ranges.push_back(read_group(group, field));
  return ranges;
}

int64_t reference_of(const GivenRange& range, int64_t references) {
  const int64_t number = range.reference < 0 ? references + range.reference : range.reference;
  return number < references ? number : -1;
}

Placement placement_of(const GivenRange& range, int64_t from_frames, int64_t frames,
                       std::optional<int64_t> align) {
  const int64_t from = start_of(range.reference_start, from_frames, align, "the reference");
  const int64_t to = start_of(range.target_start, frames, align, "the video");
  return {.from = from, .to = to, .length = std::min({range.length, frames - to, from_frames - from})};
}

at::Tensor place_references(const std::vector<GivenRange>& ranges, int64_t loop,
                            const std::vector<at::Tensor>& references, std::optional<int64_t> align,
                            at::Tensor& z, at::Tensor& placed) {
  const int64_t frames = z.size(1);
  at::Tensor mask = at::ones({frames}, at::kFloat);
  for (const GivenRange& range : ranges) {
    if (range.loop != loop) continue;
    const auto count = static_cast<int64_t>(references.size());
    const int64_t number = reference_of(range, count);
    if (number < 0)
      usage_error(field("mask_strategy"), "there is no reference {}; there are {}, counted from 0",
                  range.reference, count);
    const at::Tensor& reference = references[static_cast<size_t>(number)];
    const auto [from, to, length] = placement_of(range, reference.size(1), frames, align);
    z.narrow(1, to, length).copy_(reference.narrow(1, from, length));
    placed.narrow(0, to, length).fill_(1);
    mask.narrow(0, to, length).fill_(range.edit);
  }
  return mask;
}

}  // namespace tessera::engine
