#include "ops/conv.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "kernels/choices.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Scalars = c10::List<std::optional<at::Scalar>>;
using ConvSignature = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, IntArrayRef,
                             IntArrayRef, IntArrayRef, int64_t, c10::string_view, Scalars,
                             std::optional<c10::string_view>);
using AddSignature = Tensor&(Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, IntArrayRef,
                             IntArrayRef, IntArrayRef, int64_t, c10::string_view, std::optional<at::Scalar>,
                             std::optional<c10::string_view>, Scalars, std::optional<c10::string_view>);

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr std::array<int64_t, 2> kNoDilation = {1, 1};

// The product for the pixels of x [B, C, H, W] that each output pixel reads, as rows of kh kw C, for a few
// lines of the image at a time, because pixels occur in several rows. -> [B, out, H', W'], channels-last.
Tensor product_of_windows(const Tensor& x, const Conv2d& conv, std::array<int64_t, 2> pad) {
  constexpr int64_t kRoomBytes = 16 << 20;
  Tensor pixels = x.contiguous(kChannelsLast).permute({0, 2, 3, 1});
  const auto [height, width] = conv.kernel;
  if (height == 1 && width == 1 && conv.stride == 1)
    return conv.product->multiply(pixels).permute({0, 3, 1, 2});
  if (pad[0] + pad[1] > 0) pixels = at::constant_pad_nd(pixels, {0, 0, pad[1], pad[1], pad[0], pad[0]});
  const Tensor windows =
      pixels.unfold(1, height, conv.stride).unfold(2, width, conv.stride).permute({0, 1, 2, 4, 5, 3});
  const int64_t lines = windows.size(1), columns = windows.size(2);
  const int64_t line_bytes = columns * height * width * conv.in_channels * x.element_size();
  const int64_t block =
      std::clamp<int64_t>(kRoomBytes / std::max<int64_t>(line_bytes, 1), 1, std::max<int64_t>(lines, 1));
  Tensor y = at::empty({x.size(0), lines, columns, conv.out_channels}, x.options());
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t first = 0; first < lines; first += block) {
      const auto part = [&](const Tensor& all) {
        return all.narrow(0, b, 1).narrow(1, first, std::min(block, lines - first));
      };
      part(y).copy_(conv.product->multiply(part(windows).flatten(3)));
    }
  }
  return y.permute({0, 3, 1, 2});
}

}  // namespace

Tensor Conv2d::apply(const Tensor& x, std::array<int64_t, 2> pad) const {
  const std::array<int64_t, 2> step = {stride, stride};
  if (product) return product_of_windows(x, *this, pad);
  if (x.is_cpu() && !kernels::is_multiplied(weight.scalar_type())) return apply_narrow(x, pad);
  if (!packed) return at::conv2d(x, weight, bias, step, pad).contiguous(kChannelsLast);
  static const auto conv = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mkldnn::_convolution_pointwise", "")
                               .typed<ConvSignature>();
  return conv
      .call(x.contiguous(kChannelsLast), weight, bias, pad, step, kNoDilation, 1, "none", Scalars(), "")
      .contiguous(kChannelsLast);
}

// Works on some rows at a time, so that only these are in memory in fp32.
Tensor Conv2d::apply_narrow(const Tensor& x, std::array<int64_t, 2> both) const {
  constexpr int64_t kWideBytes = 16 << 20;
  const Tensor wide_weight = weight.to(at::kFloat), wide_bias = bias.defined() ? bias.to(at::kFloat) : bias;
  const std::array<int64_t, 2> step = {stride, stride}, pad = {0, both[1]};
  const int64_t height = x.size(2), width = x.size(3);
  const int64_t rows_out = (height + 2 * both[0] - kernel[0]) / stride + 1;
  const int64_t columns_out = (width + 2 * both[1] - kernel[1]) / stride + 1;
  const int64_t row_bytes = width * stride * std::max(in_channels, out_channels) * 4;
  const int64_t strip = std::clamp<int64_t>(kWideBytes / std::max<int64_t>(row_bytes, 1), 1, rows_out);
  Tensor y = at::empty({x.size(0), out_channels, rows_out, columns_out}, x.options(), kChannelsLast);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t first = 0; first < rows_out; first += strip) {
      const int64_t count = std::min(strip, rows_out - first);
      const int64_t top = first * stride - both[0], bottom = top + (count - 1) * stride + kernel[0];
      const int64_t begin = std::max<int64_t>(top, 0), end = std::min(bottom, height);
      const Tensor rows = at::constant_pad_nd(x.narrow(0, b, 1).narrow(2, begin, end - begin).to(at::kFloat),
                                              {0, 0, begin - top, bottom - end});
      y.narrow(0, b, 1).narrow(2, first, count).copy_(at::conv2d(rows, wide_weight, wide_bias, step, pad));
    }
  }
  return y;
}

namespace {

// Whether only the shape of the result matters.
bool computes_nothing(const Tensor& x) {
  return x.is_meta() || x.size(2) == 0;
}

// The number of rows that a convolution sees beyond x on one side: the given ones, or its padding with zeros
// at the edge of the image.
int64_t rows_beyond(const Tensor& given, int64_t padding) {
  return given.defined() ? given.size(2) : padding;
}

// Rows `wanted` of the convolution's actual input, normalised and including the halo, as one tensor. Rows of
// x are numbered from 0.
Tensor gathered(const ConvInput& input, const Halo& halo, int64_t padding, const Range& wanted) {
  const Tensor& x = input.x;
  const int64_t above = rows_beyond(halo.above, padding), below = rows_beyond(halo.below, padding);
  Tensor room = at::empty({x.size(0), x.size(1), wanted.length, x.size(3)}, x.options(), kChannelsLast);
  const auto fill = [&](const Range& rows, const Tensor& source, bool is_own) {
    const Range common = overlap(rows, wanted);
    if (common.length == 0) return;
    const Tensor part = room.narrow(2, common.begin - wanted.begin, common.length);
    if (!source.defined()) {
      part.zero_();
      return;
    }
    const Tensor from = source.narrow(2, common.begin - rows.begin, common.length);
    if (is_own && input.norm != nullptr) {
      input.norm->apply_into(part, *input.maps, from);
    } else {
      part.copy_(from);
    }
  };
  fill({-above, above}, halo.above, false);
  fill({0, x.size(2)}, x, true);
  fill({x.size(2), below}, halo.below, false);
  return room;
}

// Whether the norm may overwrite its input.
bool is_taken(const ConvInput& input) {
  return input.x.use_count() == 1 && is_for_cpu(input.x.device());
}

// All rows of the convolution's actual input.
Tensor gathered(const ConvInput& input, int64_t padding) {
  const Tensor& x = input.x;
  if (!input.halo) {
    if (input.norm == nullptr) return x;
    if (!is_taken(input)) return input.norm->apply(*input.maps, x);
    input.norm->apply_into(x, *input.maps, x);
    return x;
  }
  const int64_t above = rows_beyond(input.halo->above, padding);
  return gathered(input, *input.halo, padding,
                  {-above, above + x.size(2) + rows_beyond(input.halo->below, padding)});
}

// The number of output rows at once if each further one takes `row_bytes` of a copy.
int64_t block_of(const ConvBlocks& blocks, int64_t rows, int64_t row_bytes) {
  if (blocks.rows > 0) rows = std::min(rows, blocks.rows);
  if (blocks.bytes > 0) rows = std::min(rows, blocks.bytes / std::max<int64_t>(row_bytes, 1));
  return std::max<int64_t>(rows, 1);
}

// Calls work(x, b, out) for each sample and each block of the output `rows`, where x [1, C, .., W] is the
// input of that block.
template <typename Work>
void by_blocks(const Conv2d& conv, ConvInput input, int64_t rows, int64_t block, const Work& work) {
  const Halo halo = input.halo.value_or(Halo());
  const auto sample = [](const Tensor& all, int64_t b) { return all.defined() ? all.narrow(0, b, 1) : all; };
  for (int64_t b = 0; b < input.x.size(0); ++b) {
    ConvInput one{.x = sample(input.x, b), .norm = input.norm};
    const ChannelMaps maps = input.maps != nullptr ? input.maps->of_sample(b) : ChannelMaps();
    one.maps = &maps;
    const Halo around{sample(halo.above, b), sample(halo.below, b)};
    const int64_t top = -rows_beyond(halo.above, conv.padding[0]);
    for (int64_t first = 0; first < rows; first += block) {
      const Range out{first, std::min(block, rows - first)};
      const Range in{top + first * conv.stride, (out.length - 1) * conv.stride + conv.kernel[0]};
      work(gathered(one, around, conv.padding[0], in), b, out);
    }
  }
}

}  // namespace

int64_t Conv2d::rows_out(const ConvInput& input) const {
  const int64_t rows = input.x.size(2), pad = padding[0];
  if (rows == 0) return 0;
  const int64_t beyond =
      input.halo ? rows_beyond(input.halo->above, pad) + rows_beyond(input.halo->below, pad) : 2 * pad;
  return (rows + beyond - kernel[0]) / stride + 1;
}

int64_t Conv2d::rows_at_once(const ConvInput& input) const {
  const int64_t rows = rows_out(input);
  const bool is_copied =
      (input.halo && !computes_edges_separately(input)) || (input.norm != nullptr && !is_taken(input));
  if (!is_copied) return rows;
  const Tensor& x = input.x;
  return block_of(input.blocks, rows, in_channels * x.size(3) * stride * x.element_size());
}

bool Conv2d::computes_edges_separately(const ConvInput& input) const {
  constexpr int64_t kCheapCopy = 4 << 20;  // bytes
  const int64_t pad = padding[0];
  const auto fits = [&](const Tensor& rows) { return !rows.defined() || rows.size(2) == pad; };
  return input.halo && pad > 0 && stride == 1 && kernel[0] == 2 * pad + 1 && fits(input.halo->above) &&
         fits(input.halo->below) && static_cast<int64_t>(input.x.nbytes()) > kCheapCopy;
}

Tensor Conv2d::with_edges(const Tensor& sum, ConvInput input) const {
  const int64_t pad = padding[0], rows = input.x.size(2);
  const Halo halo = *std::exchange(input.halo, std::nullopt);
  std::vector<std::pair<int64_t, Tensor>> edges;  // first row, result
  for (const auto& [around, first] : {std::pair(halo.above, int64_t{0}), {halo.below, rows - pad}}) {
    if (!around.defined()) continue;
    const Tensor near = gathered(input, halo, pad, {first - pad, 3 * pad});
    if (sum.defined()) {
      edges.emplace_back(first, sum.narrow(2, first, pad).clone(kChannelsLast));
      add_whole(edges.back().second, near, {0, padding[1]});
    } else {
      edges.emplace_back(first, apply(near, {0, padding[1]}));
    }
  }
  Tensor y = sum;
  if (sum.defined()) {
    add_whole(y, gathered(input, pad), padding);
  } else {
    y = apply(gathered(input, pad), padding);
  }
  for (const auto& [first, edge] : edges) y.narrow(2, first, pad).copy_(edge);
  return y;
}

bool Conv2d::needs_whole_input(const ConvInput& input) const {
  const at::Tensor& x = input.x;
  if (!x.is_meta() || !is_for_cpu(x.device()) || x.size(2) == 0) return false;
  return !room.defined() && rows_at_once(input) >= rows_out(input);
}

Tensor Conv2d::operator()(ConvInput input) const {
  const OperationScope scope;
  const std::vector<int64_t> sizes = input.x.sizes().vec();
  TESSERA_CHECK(input.x.dim() == 4 && input.x.size(1) == in_channels, "convolution of {} channels got {}",
                in_channels, fmt::join(input.x.sizes(), " x "));
  Tensor y;
  if (computes_nothing(input.x)) {
    const int64_t columns = (input.x.size(3) + 2 * padding[1] - kernel[1]) / stride + 1;
    y = at::empty({input.x.size(0), out_channels, rows_out(input), columns}, input.x.options(),
                  kChannelsLast);
    record_values(input, {}, y);
    if (needs_whole_input(input)) gathered(input, padding[0]);  // counts its memory
  } else if (winograd) {
    TESSERA_CHECK(input.norm == nullptr || input.norm->activation == Activation::kSilu,
                  "a Winograd convolution needs a norm with SiLU");
    const Tensor x = input.x.contiguous(kChannelsLast);
    y = at::empty({x.size(0), out_channels, x.size(2), x.size(3)}, x.options(), kChannelsLast);
    (*winograd)(x, y, /*add=*/false, input.maps, input.halo);
  } else if (const int64_t rows = rows_out(input), block = rows_at_once(input); block < rows) {
    const int64_t columns = (input.x.size(3) + 2 * padding[1] - kernel[1]) / stride + 1;
    y = at::empty({input.x.size(0), out_channels, rows, columns}, input.x.options(), kChannelsLast);
    by_blocks(*this, std::move(input), rows, block, [&](const Tensor& x, int64_t b, const Range& out) {
      y.narrow(0, b, 1).narrow(2, out.begin, out.length).copy_(apply(x, {0, padding[1]}));
    });
  } else if (computes_edges_separately(input)) {
    y = with_edges({}, std::move(input));
  } else {
    const std::array<int64_t, 2> pad = {input.halo ? 0 : padding[0], padding[1]};
    y = apply(gathered(input, padding[0]), pad);
  }
  record_operation(sizes, y);
  return y;
}

Tensor Conv2d::consume(Tensor x) const {
  const OperationScope scope;
  const bool is_pointwise = kernel == std::array<int64_t, 2>{1, 1} && stride == 1;
  if (!is_pointwise || out_channels > in_channels || !x.is_cpu() || x.use_count() > 1 || computes_nothing(x))
    return (*this)(x);
  const int64_t rows = x.size(2), columns = x.size(3);
  x = x.contiguous(kChannelsLast);
  // An output row ends no later than its input row, so no unread input is overwritten.
  Tensor y = at::as_strided(x, {x.size(0), out_channels, rows, columns},
                            {rows * columns * out_channels, 1, columns * out_channels, out_channels},
                            x.storage_offset());
  constexpr int64_t kChunkBytes = 4 << 20;
  const int64_t block = block_of({.bytes = kChunkBytes}, rows, columns * in_channels * x.element_size());
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t first = 0; first < rows; first += block) {
      const int64_t count = std::min(block, rows - first);
      const auto part = [&](const Tensor& all) { return all.narrow(0, b, 1).narrow(2, first, count); };
      part(y).copy_(apply(part(x), padding));
    }
  }
  record_operation(x.sizes(), y);
  return y;
}

void Conv2d::add_to(Tensor& sum, ConvInput input) const {
  const OperationScope scope;
  record_operation(input.x.sizes(), sum);
  TESSERA_CHECK(sum.is_contiguous(kChannelsLast), "a convolution needs a channels-last sum");
  if (computes_nothing(input.x)) {
    record_values(input, sum, sum);
    if (needs_whole_input(input)) gathered(input, padding[0]);
    return;
  }
  if (winograd) {
    (*winograd)(input.x.contiguous(kChannelsLast), sum, /*add=*/true, input.maps, input.halo);
    return;
  }
  if (const int64_t rows = rows_out(input), block = rows_at_once(input); block < rows) {
    by_blocks(*this, std::move(input), rows, block, [&](const Tensor& x, int64_t b, const Range& out) {
      Tensor part = sum.narrow(0, b, 1).narrow(2, out.begin, out.length);
      add_whole(part, x, {0, padding[1]});
    });
    return;
  }
  if (computes_edges_separately(input)) {
    with_edges(sum, std::move(input));
    return;
  }
  const std::array<int64_t, 2> pad = {input.halo ? 0 : padding[0], padding[1]};
  add_whole(sum, gathered(input, padding[0]), pad);
}

void Conv2d::add_whole(Tensor& sum, const Tensor& x, std::array<int64_t, 2> pad) const {
  if (!packed) {
    sum.add_(apply(x, pad));
    return;
  }
  static const auto add = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("mkldnn::_convolution_pointwise_", "binary")
                              .typed<AddSignature>();
  const std::array<int64_t, 2> step = {stride, stride};
  add.call(sum, x.contiguous(kChannelsLast), weight, bias, pad, step, kNoDilation, 1, "add", 1.0,
           std::nullopt, Scalars(), std::nullopt);
}

namespace {

// Copies the pixels around `count` rows of corners, [count, W + 1, 2 (row), 2 (column), C], to their
// positions in the image [2 H, 2 W, C]. `first` is the first row of corners; pixels outside the image are
// dropped.
void place_corners(const Tensor& corners, Tensor& image, int64_t first, int64_t count) {
  const int64_t height = image.size(0), width = image.size(1);
  const int64_t pixel = image.size(2) * image.element_size();
  const auto* from = static_cast<const char*>(corners.const_data_ptr());
  auto* to = static_cast<char*>(image.mutable_data_ptr());
  at::parallel_for(0, 2 * count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t y = 2 * first - 1 + i;
      if (y < 0 || y >= height) continue;
      const char* row = from + ((i / 2) * (width / 2 + 1) * 4 + (i % 2) * 2) * pixel;
      char* out = to + y * width * pixel;
      std::memcpy(out, row + pixel, pixel);
      for (int64_t d = 1; d < width / 2; ++d) {
        std::memcpy(out + (2 * d - 1) * pixel, row + d * 4 * pixel, 2 * pixel);
      }
      std::memcpy(out + (width - 1) * pixel, row + (width / 2) * 4 * pixel, pixel);
    }
  });
}

}  // namespace

Tensor Upsample2d::operator()(const Tensor& x, const std::optional<Halo>& halo,
                              const ConvBlocks& blocks) const {
  const OperationScope scope;
  Tensor y = apply(x, halo, blocks);
  const std::array<int64_t, 4> weights = {channels, channels, 3, 3};
  record("upsample2d_conv2d", role, y, 2 * y.numel() * channels * 9, {x, Operand(weights, x.scalar_type())});
  record_dataflow([&] {
    const Halo around = halo.value_or(Halo());
    return Dataflow{
        "upsample2d_conv2d", role, {x, whole.weight, whole.bias, around.above, around.below}, {y}};
  });
  return y;
}

Tensor Upsample2d::apply(const Tensor& x, const std::optional<Halo>& halo, const ConvBlocks& blocks) const {
  if (computes_nothing(x))
    return at::empty({x.size(0), channels, 2 * x.size(2), 2 * x.size(3)}, x.options(), kChannelsLast);
  if (winograd) return (*winograd)(x.contiguous(kChannelsLast), halo);
  const int64_t height = x.size(2), width = x.size(3);
  const ConvInput input{.x = x};
  const Halo around = halo.value_or(Halo());
  const auto room = [&] {
    return at::empty({x.size(0), channels, 2 * height, 2 * width}, x.options(), kChannelsLast);
  };
  const int64_t row_bytes = 4 * (width + 1) * channels * x.element_size();
  if (!x.is_cpu()) {
    const int64_t block = block_of(blocks, height, row_bytes);
    Tensor y = block < height ? room() : Tensor();
    for (int64_t first = 0; first < height; first += block) {
      const int64_t count = std::min(block, height - first);
      const Tensor rows = gathered(input, around, 1, {first - 1, count + 2});
      const Tensor large =
          at::upsample_nearest2d(rows, {2 * count + 4, 2 * width}).narrow(2, 1, 2 * count + 2);
      Tensor part = whole.apply(large, {0, whole.padding[1]});
      if (count == height) return part;
      y.narrow(2, 2 * first, 2 * count).copy_(part);
    }
    return y;
  }
  // Works on a few rows at a time: their corners stay in the cache until they are copied, and are never all
  // in memory.
  constexpr int64_t kChunkBytes = 4 << 20;
  const int64_t chunk = block_of({.bytes = kChunkBytes}, height + 1, row_bytes);
  Tensor y = room();
  for (int64_t b = 0; b < x.size(0); ++b) {
    Tensor image = y[b].permute({1, 2, 0});
    const ConvInput one{.x = x.narrow(0, b, 1)};
    const auto sample = [&](const Tensor& row) { return row.defined() ? row.narrow(0, b, 1) : row; };
    for (int64_t first = 0; first <= height; first += chunk) {
      const int64_t count = std::min(chunk, height + 1 - first);
      const Tensor rows =
          gathered(one, {sample(around.above), sample(around.below)}, 1, {first - 1, count + 1});
      place_corners(corners.apply(rows, corners.padding), image, first, count);
    }
  }
  return y;
}

}  // namespace tessera::ops
