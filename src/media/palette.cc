#include "media/palette.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::media {
namespace {

constexpr size_t kCells = 1 << 15, kMostColours = 256;

// Holds the pixels of one cell.
struct Cell {
  size_t index = 0;
  double count = 0;
  std::array<double, 3> sum = {};

  double mean(size_t channel) const { return sum[channel] / count; }
};

// Holds some cells, and where they are to be cut.
struct Box {
  std::span<Cell> cells;
  size_t channel = 0;  // the one with the largest squared error
  double error = 0;    // of that channel
  double mean = 0;     // of that channel
};

Box measure(std::span<Cell> cells) {
  Box box{.cells = cells};
  for (size_t channel = 0; channel < 3; ++channel) {
    double count = 0, sum = 0, squares = 0;
    for (const Cell& cell : cells) {
      count += cell.count;
      sum += cell.sum[channel];
      squares += cell.sum[channel] * cell.mean(channel);
    }
    const double error = squares - sum * sum / count;
    if (channel > 0 && error <= box.error) continue;
    box.channel = channel;
    box.error = error;
    box.mean = sum / count;
  }
  return box;
}

std::vector<Cell> used_cells(std::span<const uint8_t> rgb) {
  std::vector<Cell> all(kCells);
  for (size_t i = 0; i + 2 < rgb.size(); i += 3) {
    Cell& cell = all[Palette::cell(&rgb[i])];
    cell.count += 1;
    for (size_t channel = 0; channel < 3; ++channel) cell.sum[channel] += rgb[i + channel];
  }
  for (size_t i = 0; i < kCells; ++i) all[i].index = i;
  std::erase_if(all, [](const Cell& cell) { return cell.count == 0; });
  return all;
}

std::vector<Box> cut_boxes(std::span<Cell> cells) {
  std::vector<Box> boxes = {measure(cells)};
  while (boxes.size() < kMostColours) {
    Box& worst = *std::max_element(boxes.begin(), boxes.end(),
                                   [](const Box& a, const Box& b) { return a.error < b.error; });
    const auto upper = std::partition(worst.cells.begin(), worst.cells.end(), [&worst](const Cell& cell) {
      return cell.mean(worst.channel) < worst.mean;
    });
    const auto lower = static_cast<size_t>(upper - worst.cells.begin());
    if (lower == 0 || lower == worst.cells.size()) break;  // each box has a single cell
    const Box rest = measure(worst.cells.subspan(lower));
    worst = measure(worst.cells.first(lower));
    boxes.push_back(rest);
  }
  return boxes;
}

std::array<uint8_t, 3> mean_colour(std::span<const Cell> cells) {
  std::array<double, 3> sum = {};
  double count = 0;
  for (const Cell& cell : cells) {
    count += cell.count;
    for (size_t channel = 0; channel < 3; ++channel) sum[channel] += cell.sum[channel];
  }
  std::array<uint8_t, 3> colour = {};
  for (size_t channel = 0; channel < 3; ++channel)
    colour[channel] = static_cast<uint8_t>(std::lround(sum[channel] / count));
  return colour;
}

uint8_t nearest_colour(const Cell& cell, const std::vector<std::array<uint8_t, 3>>& colours) {
  size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < colours.size(); ++i) {
    double distance = 0;
    for (size_t channel = 0; channel < 3; ++channel) {
      const double difference = cell.mean(channel) - colours[i][channel];
      distance += difference * difference;
    }
    if (distance >= least) continue;
    least = distance;
    best = i;
  }
  return static_cast<uint8_t>(best);
}

}  // namespace

Palette make_palette(std::span<const uint8_t> rgb) {
  std::vector<Cell> cells = used_cells(rgb);
  Palette palette;
  palette.nearest.resize(kCells);
  for (const Box& box : cut_boxes(cells)) palette.colours.push_back(mean_colour(box.cells));
  for (const Cell& cell : cells) palette.nearest[cell.index] = nearest_colour(cell, palette.colours);
  return palette;
}

}  // namespace tessera::media
