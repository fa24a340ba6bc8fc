#include "models/resnet_block_2d.h"

#include <utility>

namespace tessera::models {
namespace {

ops::Activation of_norms(const ResnetBlock2D::Options& options) {
  return options.activation == nullptr ? ops::Activation::kSilu : ops::Activation::kNone;
}

}  // namespace

ResnetBlock2D::ResnetBlock2D(const weights::Scope& scope, int64_t in, int64_t out, const Options& options)
    : norm1(scope / "norm1", in, options.norm_groups, options.eps, of_norms(options)),
      norm2(scope / "norm2", out, options.norm_groups, options.eps, of_norms(options)),
      conv1(scope / "conv1", in, out, 3, 1, 1),
      conv2(scope / "conv2", out, out, 3, 1, 1),
      activation(options.activation) {
  if (options.embedding_channels > 0)
    time_emb_proj.emplace(scope / "time_emb_proj", options.embedding_channels, out);
  if (in != out) conv_shortcut.emplace(scope / "conv_shortcut", in, out, 1);
}

at::Tensor ResnetBlock2D::operator()(at::Tensor x, const nn::Rows& rows, const at::Tensor& embedding) const {
  if (activation != nullptr) return with_activation(x, rows, embedding);
  at::Tensor sum, h;
  if (conv_shortcut && !rows.blocks().have_room_for(x)) {  // memory is short: the result overwrites x
    h = conv1(norm1, x, rows);
    sum = conv_shortcut->consume(std::move(x));
  } else {
    sum = conv_shortcut ? (*conv_shortcut)(x, rows) : x.use_count() > 1 ? x.clone() : x;
    h = conv1(norm1, std::move(x), rows);
  }
  conv2.add_to(sum, norm2, std::move(h), rows, time_emb_proj ? (*time_emb_proj)(embedding) : at::Tensor());
  return sum;
}

at::Tensor ResnetBlock2D::with_activation(const at::Tensor& x, const nn::Rows& rows,
                                          const at::Tensor& embedding) const {
  const at::Tensor h = conv1(activation(nn::group_norm(norm1, x, rows)), rows),
                   offset = time_emb_proj ? (*time_emb_proj)(embedding) : at::Tensor();
  return (conv_shortcut ? (*conv_shortcut)(x, rows) : x) +
         conv2(activation(nn::group_norm(norm2, h, rows, offset)), rows);
}

}  // namespace tessera::models
