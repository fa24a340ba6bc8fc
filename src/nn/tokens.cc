#include "nn/tokens.h"

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/collectives.h"
#include "core/error.h"
#include "ops/attention.h"
#include "parallel/dsp.h"
#include "parallel/ulysses.h"

namespace tessera::nn {
namespace {

// Views [B, T * S, C] as B * T (or B * S) samples, so that attention stays within a frame (or a position).
at::Tensor fold(const at::Tensor& x, Over over, int64_t frames) {
  if (over == Over::kAll) return x;
  const at::Tensor by_frame = x.unflatten(1, {frames, x.size(1) / frames});
  return (over == Over::kSpatial ? by_frame : by_frame.transpose(1, 2)).flatten(0, 1);
}

at::Tensor unfold(const at::Tensor& x, Over over, int64_t batch) {
  if (over == Over::kAll) return x;
  const at::Tensor by_sample = x.unflatten(0, {batch, x.size(0) / batch});
  return (over == Over::kSpatial ? by_sample : by_sample.transpose(1, 2)).flatten(1, 2);
}

// Adjacent samples whose sequences have the same length attend together.
std::vector<Range> runs_of_equals(at::ArrayRef<int64_t> lengths) {
  std::vector<Range> runs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (i == 0 || lengths[i] != lengths[i - 1]) runs.push_back({static_cast<int64_t>(i), 0});
    ++runs.back().length;
  }
  return runs;
}

// Returns whether dealing out lines of that axis separates tokens that attend to each other.
bool are_divided_by(Over over, parallel::GridAxis axis) {
  return over == Over::kAll || (over == Over::kSpatial) == (axis == parallel::GridAxis::kRows);
}

}  // namespace

Tokens::Tokens(parallel::Cut cut, TokenGroups groups)
    : cut_(cut), groups_(std::move(groups)), run_(cut_.all_patches()) {
  const comm::Group& ulysses = groups_.ulysses;
  TESSERA_CHECK(
      cut_.ranks == groups_.all.size &&
          (groups_.displaced || cut_.ranks == ulysses.size * groups_.ulysses_groups()) &&
          (groups_.displaced || groups_.all.rank == groups_.part(groups_.own_ulysses_group(), ulysses.rank)),
      "a cut into {} parts does not fit {} x {} x {} (Ulysses x gather x ring) of {} ranks", cut_.ranks,
      ulysses.size, groups_.gather.size, groups_.ring.size, groups_.all.size);
  if (groups_.displaced && cut_.ranks > 1)
    displaced_ = std::make_unique<parallel::DisplacedExchange>(groups_.all, *groups_.displaced);
  for (const Over over : kOvers) {
    attention_[static_cast<size_t>(over)] =
        make_token_attention(groups_of(over), patches_divide(over) ? cut_.patches : 1,
                             ranks_divide(over) ? displaced_.get() : nullptr);
  }
}

at::Tensor Tokens::local(const at::Tensor& x, int64_t dim) const {
  std::vector<Range> ranges = cut_.tokens(run_, rank());
  add_beside(ranges, attached_, grid().tokens());
  return parallel::select_ranges(x, dim, ranges);
}

at::Tensor Tokens::local_attached(const at::Tensor& x, int64_t dim) const {
  return parallel::select_ranges(x, dim, ranges_beside(attached_));
}

void Tokens::add_beside(std::vector<Range>& ranges, int64_t count, int64_t before) const {
  for (int64_t patch = run_.begin; patch < run_.end(); ++patch) {
    const Range part = cut_.part_beside(count, patch, rank());
    if (part.length == 0) continue;
    if (ranges.back().end() == before + part.begin)
      ranges.back().length += part.length;
    else
      ranges.push_back({before + part.begin, part.length});
  }
}

std::vector<Range> Tokens::ranges_beside(int64_t count) const {
  std::vector<Range> ranges = {{0, 0}};
  add_beside(ranges, count, 0);
  if (ranges.size() > 1 && ranges.front().length == 0) ranges.erase(ranges.begin());
  return ranges;
}

at::Tensor Tokens::local_frames(const at::Tensor& x, int64_t dim) const {
  return parallel::select_ranges(x, dim, cut_.lines_of(parallel::GridAxis::kFrames, run_, rank()));
}

int64_t Tokens::local_rows(int64_t rows, int64_t of_each) const {
  int64_t local = 0;
  for (const Range& range : cut_.lines_of(parallel::GridAxis::kRows, run_, rank()))
    local += overlap(times(range, of_each), {0, rows}).length;
  return local;
}

at::Tensor Tokens::local_other(const at::Tensor& x, int64_t dim) const {
  return parallel::select_ranges(x, dim, ranges_beside(x.size(dim)));
}

int64_t Tokens::local_other_length(int64_t length, Range patches) const {
  int64_t local = 0;
  for (int64_t patch = patches.begin; patch < patches.end(); ++patch)
    local += cut_.part_beside(length, patch, rank()).length;
  return local;
}

at::Tensor Tokens::local_other(const at::Tensor& x, at::ArrayRef<int64_t> lengths) const {
  TESSERA_CHECK(x.size(0) == static_cast<int64_t>(lengths.size()), "{} lengths for {} samples",
                lengths.size(), x.size(0));
  int64_t longest = 0;
  for (const int64_t length : lengths) longest = std::max(longest, local_other_length(length));
  std::vector<at::Tensor> parts;
  for (int64_t b = 0; b < x.size(0); ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    parts.push_back(at::constant_pad_nd(parallel::select_ranges(x[b], 0, ranges_beside(length)),
                                        {0, 0, 0, longest - local_other_length(length)}));
  }
  return at::stack(parts);
}

bool Tokens::ranks_divide(Over over) const {
  return are_divided_by(over, cut_.rank_axis);
}

bool Tokens::patches_divide(Over over) const {
  return are_divided_by(over, cut_.patch_axis);
}

at::Tensor Tokens::attention(const QueriesKeysValues& own, int64_t depth, Over over) {
  const int64_t batch = own.q.size(0), frames = held().frames;
  const QueriesKeysValues folded{fold(own.q, over, frames), fold(own.k, over, frames),
                                 fold(own.v, over, frames)};
  return unfold(attend(folded, depth, sequence(over), over), over, batch);
}

at::Tensor Tokens::attention(const QueriesKeysValues& own, int64_t depth, const parallel::Cut& cut) {
  return attend(own, depth, TokenSequence(cut, groups_, run_, Over::kAll), Over::kAll);
}

at::Tensor Tokens::of_local_tokens(const at::Tensor& angles) const {
  const parallel::Grid own = held();
  return local_frames(angles, 0)
      .unsqueeze(1)
      .expand({own.frames, own.rows * own.columns, -1, -1})
      .flatten(0, 1);
}

at::Tensor Tokens::of_frames_together(const at::Tensor& angles) const {
  std::vector<Range> frames;
  for (int64_t i = 0; i < groups_.ulysses.size; ++i) {
    const std::vector<Range> parts =
        cut_.lines_of(parallel::GridAxis::kFrames, run_, groups_.part(groups_.own_ulysses_group(), i));
    frames.insert(frames.end(), parts.begin(), parts.end());
  }
  return parallel::select_ranges(angles, 0, frames);
}

at::Tensor Tokens::axial_attention(const at::Tensor& x, int64_t depth, Over over, const at::Tensor& angles,
                                   const AttentionLayers& layers) {
  if (!groups_.dsp || groups_.ulysses.size == 1 || !ranks_divide(over))
    return layers.out(
        attention(layers.in(x, angles.defined() ? of_local_tokens(angles) : angles), depth, over));
  TESSERA_CHECK(!angles.defined() || over == Over::kTemporal,
                "attention within frames has no angles by frame");
  const TokenSequence along = sequence(over);
  const std::vector<int64_t> lengths = along.of_ulysses();
  const at::Tensor folded = fold(x, over, held().frames);
  const at::Tensor whole = parallel::tokens_to_samples(folded, lengths, groups_.ulysses);
  const QueriesKeysValues all = layers.in(whole, angles.defined() ? of_frames_together(angles) : angles);
  const at::Tensor attended = strategy(over)({.own = all, .depth = depth, .sequence = along});
  return unfold(parallel::samples_to_tokens(layers.out(attended), folded.size(0), lengths, groups_.ulysses),
                over, x.size(0));
}

std::pair<at::Tensor, at::Tensor> Tokens::joint_attention(const QueriesKeysValues& own,
                                                          const QueriesKeysValues& other,
                                                          int64_t other_length, int64_t depth) {
  return joint(own, other, {other_length}, depth);
}

std::pair<at::Tensor, at::Tensor> Tokens::joint(const QueriesKeysValues& own, const QueriesKeysValues& other,
                                                at::ArrayRef<int64_t> others, int64_t depth) {
  std::vector<int64_t> beside = {attached_};
  int64_t local = 0;
  for (const int64_t length : others) {
    beside.push_back(length);
    local += local_other_length(length);
  }
  TESSERA_CHECK(other.q.size(1) == local, "{} local tokens do not fit other sequences of {} tokens",
                other.q.size(1), fmt::join(others, " and "));
  const QueriesKeysValues both{at::concat({own.q, other.q}, 1), at::concat({own.k, other.k}, 1),
                               at::concat({own.v, other.v}, 1)};
  const at::Tensor attended =
      attend(both, depth, {cut_, groups_, run_, Over::kAll, std::move(beside)}, Over::kAll);
  const int64_t length = own.q.size(1);
  return {attended.narrow(1, 0, length), attended.narrow(1, length, local)};
}

std::pair<at::Tensor, at::Tensor> Tokens::joint_attention(const QueriesKeysValues& own,
                                                          const QueriesKeysValues& other,
                                                          at::ArrayRef<int64_t> other_lengths, int64_t depth,
                                                          int64_t first) {
  const std::vector<Range> runs = runs_of_equals(other_lengths);
  TESSERA_CHECK(!runs.empty() && runs.back().end() == own.q.size(0), "{} lengths for {} samples",
                other_lengths.size(), own.q.size(0));
  const auto length_of = [&](const Range& run) { return other_lengths[static_cast<size_t>(run.begin)]; };
  if (runs.size() == 1) return joint(own, other, {first, length_of(runs[0])}, depth);
  const at::Tensor of_own = at::empty(own.q.sizes(), own.q.options());
  const at::Tensor of_other = at::zeros(other.q.sizes(), other.q.options());
  for (const Range& run : runs) {
    const int64_t local = local_other_length(first) + local_other_length(length_of(run));
    const auto samples = [&](const at::Tensor& x) { return x.narrow(0, run.begin, run.length); };
    const auto part = [&](const at::Tensor& x) { return samples(x).narrow(1, 0, local); };
    const auto [attended, attended_other] =
        joint({samples(own.q), samples(own.k), samples(own.v)}, {part(other.q), part(other.k), part(other.v)},
              {first, length_of(run)}, depth);
    samples(of_own).copy_(attended);
    part(of_other).copy_(attended_other);
  }
  return {of_own, of_other};
}

at::Tensor Tokens::attend(const QueriesKeysValues& own, int64_t depth, const TokenSequence& sequence,
                          Over over) {
  const comm::Group& ulysses = sequence.groups().ulysses;
  const int64_t units = own.k.size(2) / depth;  // key heads, each with the queries that share it
  const bool by_token = ulysses.size > 1;
  std::vector<int64_t> lengths;
  QueriesKeysValues by_heads = own;
  if (by_token) {
    lengths = sequence.of_ulysses();
    const std::vector<at::Tensor> parts =
        parallel::tokens_to_heads({own.q, own.k, own.v}, units, lengths, ulysses);
    by_heads = {parts[0], parts[1], parts[2]};
  }
  const at::Tensor attended = strategy(over)({.own = by_heads,
                                              .depth = depth,
                                              .sequence = sequence,
                                              .by_token = by_token});  // each rank's share is contiguous
  if (!by_token) return attended;
  return parallel::heads_to_tokens(attended.transpose(0, 1).contiguous(), own.q.size(2), units, lengths,
                                   ulysses);
}

}  // namespace tessera::nn
