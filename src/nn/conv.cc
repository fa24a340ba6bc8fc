#include "nn/conv.h"

#include <ATen/Functions.h>

#include <utility>

#include "core/device.h"

namespace tessera::nn {
namespace {

parallel::RowWindow window_of(const ops::Conv2d& conv) {
  return {conv.kernel[0], conv.stride, conv.padding[0]};
}

// Holds the inputs of a convolution over a norm of x, and the objects they refer to.
struct Normed {
  Normed(const ops::Conv2d& conv, const ops::GroupNorm& norm, at::Tensor taken, const Rows& rows,
         const at::Tensor& offset)
      : x(std::move(taken)), maps(norm.maps(rows.moments(norm.moments(x, offset)), offset)) {
    const auto part = [&](const Range& range) {
      return norm.apply(maps, x.narrow(2, range.begin, range.length));
    };
    halo = rows.halo(x, window_of(conv), part);
  }

  at::Tensor x;
  ops::ChannelMaps maps;
  std::optional<ops::Halo> halo;
};

// On other devices, a single kernel normalises the whole image if memory suffices.
bool is_one_kernel(const at::Tensor& x, const Rows& rows) {
  return rows.is_whole() && !is_for_cpu(x.device()) && rows.blocks().have_room_for(x);
}

at::Tensor with_offset(const at::Tensor& x, const at::Tensor& offset) {
  return offset.defined() ? x + offset.to(x.scalar_type()).unsqueeze(-1).unsqueeze(-1) : x;
}

}  // namespace

at::Tensor group_norm(const ops::GroupNorm& norm, at::Tensor x, const Rows& rows, const at::Tensor& offset) {
  if (is_one_kernel(x, rows)) return norm(with_offset(x, offset));
  const ops::ChannelMaps maps = norm.maps(rows.moments(norm.moments(x, offset)), offset);
  return norm.apply_over(maps, std::move(x));
}

at::Tensor Conv2d::operator()(const at::Tensor& x, const Rows& rows, bool always_fresh) const {
  const auto part = [&](const Range& range) { return x.narrow(2, range.begin, range.length); };
  return conv({.x = x, .halo = rows.halo(x, window_of(conv), part, always_fresh), .blocks = rows.blocks()});
}

at::Tensor Conv2d::operator()(const ops::GroupNorm& norm, at::Tensor x, const Rows& rows,
                              const at::Tensor& offset) const {
  if (is_one_kernel(x, rows)) return conv(norm(with_offset(x, offset)));
  Normed normed(conv, norm, std::move(x), rows, offset);
  return conv({std::move(normed.x), &norm, &normed.maps, std::move(normed.halo), rows.blocks()});
}

void Conv2d::add_to(at::Tensor& sum, const ops::GroupNorm& norm, at::Tensor x, const Rows& rows,
                    const at::Tensor& offset) const {
  if (is_one_kernel(x, rows)) return conv.add_to(sum, norm(with_offset(x, offset)));
  Normed normed(conv, norm, std::move(x), rows, offset);
  conv.add_to(sum, {std::move(normed.x), &norm, &normed.maps, std::move(normed.halo), rows.blocks()});
}

at::Tensor PaddedDownsample2d::operator()(const at::Tensor& x, const Rows& rows) const {
  const int64_t bottom = rows.is_whole() ? 1 : 0;
  const auto padded = [](const at::Tensor& part, int64_t below) {
    return at::constant_pad_nd(part, {0, 1, 0, below});
  };
  const auto part = [&](const Range& range) { return padded(x.narrow(2, range.begin, range.length), 0); };
  const at::Tensor wide = padded(x, bottom);
  std::optional<ops::Halo> halo = rows.halo(wide, {.kernel = 3, .stride = 2}, part);
  return conv({.x = wide, .halo = std::move(halo), .blocks = rows.blocks()});
}

Upsample2d::Upsample2d(const weights::Scope& scope, int64_t channels) : upsample(scope, channels) {}

at::Tensor Upsample2d::operator()(const at::Tensor& x, const Rows& rows) const {
  // The neighbouring row that a part of the large image needs comes from the neighbouring row of the small
  // one.
  const auto part = [&](const Range& range) { return x.narrow(2, range.begin, range.length); };
  return upsample(x, rows.halo(x, {.kernel = 3, .stride = 1, .padding = 1}, part), rows.blocks());
}

UpsampleToScale2d::UpsampleToScale2d(const weights::Scope& scope, int64_t channels)
    : doubling(scope, channels) {
  plain->weight = (scope / "conv").tensor("weight", {channels, channels, 3, 3});
  plain->bias = (scope / "conv").tensor("bias", {channels});
}

at::Tensor UpsampleToScale2d::operator()(const at::Tensor& x, const Rows& rows, const Rows& to) const {
  if (to.grid() == rows.finer().grid()) return doubling(x, rows);
  const std::vector<int64_t> doubled = {2 * x.size(2), 2 * x.size(3)};
  const at::Tensor large = at::upsample_nearest2d(x, doubled)
                               .narrow(2, 0, to.local().length)
                               .narrow(3, 0, to.grid().columns)
                               .contiguous(at::MemoryFormat::ChannelsLast);
  std::call_once(plain->is_laid_out, [this] {
    plain->conv.conv = ops::Conv2d(plain->weight, plain->bias, /*stride=*/1, {1, 1});
    plain->conv.conv.role = doubling.upsample.role;
    plain->weight.reset();
    plain->bias.reset();
  });
  return plain->conv(large, to);
}

}  // namespace tessera::nn
