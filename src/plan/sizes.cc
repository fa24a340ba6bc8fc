#include "plan/sizes.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/text.h"

namespace tessera::plan {
namespace {

TensorMesh parse_mesh(const std::string& text) {
  TensorMesh mesh;
  const char* const end = text.data() + text.size();
  const auto x = std::from_chars(text.data(), end, mesh.x);
  const bool has_x = x.ec == std::errc() && x.ptr != end && *x.ptr == 'x';
  if (has_x) {
    const auto y = std::from_chars(x.ptr + 1, end, mesh.y);
    if (y.ec == std::errc() && y.ptr == end && mesh.x >= 1 && mesh.y >= 1) return mesh;
  }
  usage_error(field("mesh"), "expected two numbers of ranks as in 2x4, got '{}'", text);
}

Fields<Sizes> make_fields() {
  using S = Sizes;
  constexpr FieldGroup kModel = FieldGroup::kModel, kDegrees = FieldGroup::kDegrees;
  return {
      plain_field(&S::layers, {"layers", "Transformer layers", kModel, "N", 1}),
      plain_field(&S::hidden, {"hidden", "Hidden size", kModel, "N", 1}),
      plain_field(&S::heads, {"heads", "Attention heads", kModel, "N", 1}),
      plain_field(&S::key_value_heads,
                  {"key_value_heads", "Heads of keys and values (grouped queries) [as many as heads]", kModel,
                   "N", 1}),
      plain_field(&S::sequence, {"sequence", "Tokens of a sample", kModel, "N", 1}),
      plain_field(&S::batch, {"batch", "Samples of all ranks together [1]", kModel, "N", 1}),
      plain_field(&S::vocabulary,
                  {"vocabulary", "Size of a last layer that gives logits [no such layer]", kModel, "N", 1}),
      plain_field(
          &S::frames,
          {"frames", "Frames among which the tokens are divided, for DSP [DSP is left out]", kModel, "N", 1}),
      plain_field(&S::degree, {"degree", "Ranks", kDegrees, "N", 1}),
      text_field(
          &S::mesh,
          {"mesh",
           "2D tensor parallelism: activations are gathered over N ranks and sums scattered over M [the "
           "squarest]",
           kDegrees, "MxN"},
          [](const TensorMesh& mesh) { return fmt::format("{}x{}", mesh.x, mesh.y); }, parse_mesh),
      plain_field(&S::ulysses_degree,
                  {"ulysses_degree", "USP: ranks of a Ulysses group [the most that divide the heads]",
                   kDegrees, "N", 1}),
      plain_field(&S::ring_degree, {"ring_degree", "USP: ranks of a ring [the others]", kDegrees, "N", 1}),
      plain_field(
          &S::micro_batches,
          {"micro_batches", "Pipeline: parts of the batch [one for each rank, at most one for each sample]",
           kDegrees, "N", 1}),
      plain_field(&S::interleaved,
                  {"interleaved", "Pipeline: runs of layers that a rank has [1: not interleaved]", kDegrees,
                   "N", 1})};
}

void require_sizes(const Sizes& sizes) {
  for (const Field<Sizes>& each : sizes_fields()) {
    if (const Json value = each.get(sizes); value.is_number_integer() && value.get<int64_t>() == 0)
      usage_error(field(each.name), "is missing; {}, {}, {}, {} and {} are needed", field("layers"),
                  field("hidden"), field("heads"), field("sequence"), field("degree"));
  }
}

// Either degree of USP follows from the other.
void resolve_usp(Sizes& sizes) {
  const int64_t heads = *sizes.key_value_heads, degree = sizes.degree;
  std::optional<int64_t>&ulysses = sizes.ulysses_degree, &ring = sizes.ring_degree;
  for (const char* name : {"ulysses_degree", "ring_degree"}) {
    const std::optional<int64_t>& given = name == std::string("ring_degree") ? ring : ulysses;
    if (given && degree % *given != 0)
      usage_error(field(name), "{} does not divide the {} of {}", *given, counted(degree, "rank"),
                  field("degree"));
  }
  if (ulysses && ring && *ulysses != degree / *ring)
    usage_error(field("ulysses_degree"), "{} x {} {} are not the {} of {}", *ulysses, field("ring_degree"),
                *ring, counted(degree, "rank"), field("degree"));
  if (!ulysses) ulysses = ring ? degree / *ring : std::gcd(degree, heads);
  if (!ring) ring = degree / *ulysses;
  if (heads < *ulysses)
    usage_error(field(sizes.key_value_heads == sizes.heads ? "heads" : "key_value_heads"),
                "{} cannot be divided among the {} ranks of a Ulysses group; raise {}",
                counted(heads, "head"), *ulysses, field("ring_degree"));
}

void resolve_mesh(Sizes& sizes) {
  if (!sizes.mesh) {
    sizes.mesh = TensorMesh{1, sizes.degree};
    for (int64_t x = 2; x <= sizes.degree / x; ++x) {
      if (sizes.degree % x == 0) sizes.mesh = TensorMesh{x, sizes.degree / x};
    }
  }
  const auto [x, y] = *sizes.mesh;
  if (sizes.degree % x != 0 || sizes.degree / x != y)
    usage_error(field("mesh"), "{}x{} is not the {} of {}", x, y, counted(sizes.degree, "rank"),
                field("degree"));
}

// Given values must divide the sizes; a default that does not is left to the pipeline, which then has an
// obstacle.
void resolve_pipeline(Sizes& sizes) {
  const std::optional<int64_t>& given = sizes.micro_batches;
  if (given && sizes.batch % *given != 0)
    usage_error(field("micro_batches"), "{} do not divide a batch of {}", *given, sizes.batch);
  const int64_t runs = sizes.interleaved, degree = sizes.degree;
  if (runs > 1 && (sizes.layers % degree != 0 || sizes.layers / degree % runs != 0))
    usage_error(field("interleaved"), "{} runs of layers on each of {} do not divide {}", runs,
                counted(degree, "rank"), counted(sizes.layers, "layer"));
  if (runs > 1 && given && *given % degree != 0)
    usage_error(field("micro_batches"), "{}: with {} they must be a multiple of the {} ranks", *given,
                field("interleaved"), degree);
  if (!given) sizes.micro_batches = runs > 1 ? degree : std::min(degree, sizes.batch);
}

}  // namespace

const Fields<Sizes>& sizes_fields() {
  static const Fields<Sizes> fields = make_fields();
  return fields;
}

Sizes resolve(Sizes sizes) {
  require_sizes(sizes);
  constexpr int64_t kMostRanks = 1 << 20;
  const int64_t degree = sizes.degree;
  if (degree > kMostRanks)
    usage_error(field("degree"), "{} ranks, at most {} are compared", degree, kMostRanks);
  if (sizes.hidden % sizes.heads != 0)
    usage_error(field("heads"), "{} do not divide a hidden size of {}", sizes.heads, sizes.hidden);
  if (!sizes.key_value_heads) sizes.key_value_heads = sizes.heads;
  if (sizes.heads % *sizes.key_value_heads != 0)
    usage_error(field("key_value_heads"), "{} do not divide {}", *sizes.key_value_heads,
                counted(sizes.heads, "head"));
  if (sizes.frames && sizes.sequence % *sizes.frames != 0)
    usage_error(field("frames"), "{} do not divide a sequence of {}", *sizes.frames,
                counted(sizes.sequence, "token"));
  if (degree > std::max({sizes.batch, sizes.sequence, sizes.heads, sizes.layers}))
    usage_error(field("degree"),
                "{} are more than there are samples ({}), tokens ({}), heads ({}) and layers ({}): {}",
                degree, sizes.batch, sizes.sequence, sizes.heads, sizes.layers,
                "no method can use so many ranks");
  resolve_usp(sizes);
  resolve_mesh(sizes);
  resolve_pipeline(sizes);
  return sizes;
}

}  // namespace tessera::plan
