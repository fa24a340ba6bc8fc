#include "plan/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera::plan {
namespace {

constexpr double kWidth = 960, kRight = 120, kRow = 22;
constexpr double kCharacter = 6.8;  // the width of most characters, at 12 pixels
constexpr double kPlotLeft = 105, kPlotHeight = 320, kPlotBottom = 48, kPlotTop = 12;
constexpr std::array kColours = {"#2f6fb3", "#d9822b", "#3a9a5b", "#a04a9c",
                                 "#b33a3a", "#7a7a2f", "#4aa3a3", "#777777"};

const char* colour(size_t i) {
  return kColours[i % kColours.size()];
}

std::string begin_svg(const std::string& name, double height) {
  return fmt::format(
      "<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" role=\"img\" aria-label=\"{2}\">\n", kWidth,
      height, html_escaped(name));
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     html_escaped(text));
}

std::string rect(double x, double y, double width, double height, const char* fill,
                 const std::string& title) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" "
      "fill=\"{}\"><title>{}</title></rect>\n",
      x, y, std::max(width, 0.2), height, fill, html_escaped(title));
}

std::string legend_html(const std::vector<std::string>& legend) {
  if (legend.size() < 2) return {};
  std::string html = "<p class=\"legend\">";
  for (size_t i = 0; i < legend.size(); ++i)
    html +=
        fmt::format("<span style=\"color:{}\">&#9632;</span> {} &nbsp; ", colour(i), html_escaped(legend[i]));
  return html + "</p>\n";
}

// Where the plot shows a number.
struct Scale {
  double least = 0, most = 1, from = 0, to = 1;
  bool logarithmic = false;

  double operator()(double value) const {
    const auto at = [&](double x) { return logarithmic ? std::log10(x) : x; };
    return from + (to - from) * (at(value) - at(least)) / (at(most) - at(least));
  }
  std::vector<double> ticks() const {
    std::vector<double> all;
    if (logarithmic) {
      const int first = static_cast<int>(std::ceil(std::log10(least)));
      const int last = static_cast<int>(std::floor(std::log10(most)));
      for (int power = first; power <= last; ++power) all.push_back(std::pow(10, power));
      return all;
    }
    constexpr int kTicks = 5;
    for (int i = 0; i <= kTicks; ++i) all.push_back(least + (most - least) * i / kTicks);
    return all;
  }
};

Scale scale_of(const std::vector<Series>& series, bool of_x, bool logarithmic, double from, double to) {
  double least = std::numeric_limits<double>::max(), most = 0;
  for (const Series& each : series) {
    for (const auto& [x, y] : each.points) {
      least = std::min(least, of_x ? x : y);
      most = std::max(most, of_x ? x : y);
    }
  }
  if (!logarithmic || least > most) least = 0;
  if (logarithmic) {
    least /= 1.5;
    most *= 1.5;
  }
  if (most <= least) most = least + 1;
  return {least, most, from, to, logarithmic};
}

std::string axes_svg(const Scale& x, const Scale& y, const Axes& axes) {
  std::string svg;
  for (const double tick : x.ticks()) {
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/>\n",
                       x(tick), y.to, y.from);
    svg += text_at(x(tick), y.from + 16, "middle", axes.x_text(tick));
  }
  for (const double tick : y.ticks()) {
    svg += fmt::format("<line x1=\"{1:.1f}\" x2=\"{2:.1f}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" class=\"grid\"/>\n",
                       y(tick), x.from, x.to);
    svg += text_at(x.from - 6, y(tick) + 4, "end", axes.y_text(tick));
  }
  svg += text_at((x.from + x.to) / 2, y.from + 36, "middle", axes.x);
  return svg + text_at(x.from, y.to - 2, "start", axes.y);
}

// The end of a label that is longer than this many characters.
std::string shortened(const std::string& label, size_t length) {
  if (label.size() <= length) return label;
  size_t begin = label.size() - (length - 1);
  while (begin < label.size() && (static_cast<unsigned char>(label[begin]) & 0xC0) == 0x80) ++begin;
  return "\u2026" + label.substr(begin);
}

double total(const Bar& bar) {
  return std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0);
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string bar_chart(const std::string& name, const std::vector<Bar>& bars,
                      const std::vector<std::string>& legend, const NumberText& text) {
  constexpr size_t kLongest = 76;
  double most = 0;
  size_t longest = 0;
  for (const Bar& bar : bars) {
    most = std::max(most, total(bar));
    longest = std::max(longest, bar.label.size());
  }
  const double left = 20 + kCharacter * static_cast<double>(std::min(longest, kLongest));
  std::string svg = begin_svg(name, kRow * static_cast<double>(bars.size()) + 8);
  const double scale = most > 0 ? (kWidth - left - kRight) / most : 0;
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kRow * static_cast<double>(i) + 4;
    svg += text_at(left - 8, y + kRow * 0.65, "end", shortened(bars[i].label, kLongest));
    double x = left;
    for (size_t part = 0; part < bars[i].parts.size(); ++part) {
      const double width = bars[i].parts[part] * scale;
      const std::string title =
          (part < legend.size() ? legend[part] : bars[i].label) + ": " + text(bars[i].parts[part]);
      if (width > 0) svg += rect(x, y, width, kRow - 5, colour(part), title);
      x += width;
    }
    svg += text_at(x + 6, y + kRow * 0.65, "start", text(total(bars[i])));
  }
  return legend_html(legend) + svg + "</svg>\n";
}

std::string line_chart(const std::string& name, const std::vector<Series>& series, const Axes& axes) {
  const Scale x = scale_of(series, true, axes.logarithmic, kPlotLeft, kWidth - 20);
  const Scale y = scale_of(series, false, axes.logarithmic, kPlotTop + kPlotHeight, kPlotTop + 12);
  std::string svg = begin_svg(name, kPlotTop + kPlotHeight + kPlotBottom) + axes_svg(x, y, axes);
  std::vector<std::string> legend;
  for (size_t i = 0; i < series.size(); ++i) {
    legend.push_back(series[i].name);
    if (series[i].is_line) {
      std::string points;
      for (const auto& [px, py] : series[i].points) points += fmt::format("{:.1f},{:.1f} ", x(px), y(py));
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                         points, colour(i));
      continue;
    }
    for (const auto& [px, py] : series[i].points)
      svg += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>{}: {}, {}</title></circle>\n",
          x(px), y(py), colour(i), html_escaped(series[i].name), html_escaped(axes.x_text(px)),
          html_escaped(axes.y_text(py)));
  }
  return legend_html(legend) + svg + "</svg>\n";
}

std::string lanes_chart(const std::string& name, const std::vector<Lane>& lanes,
                        const std::vector<LaneSpan>& spans, const std::vector<LaneMark>& marks,
                        const std::vector<std::string>& legend, const NumberText& text) {
  constexpr double kNote = 130;
  size_t longest = 0;
  for (const Lane& lane : lanes) longest = std::max(longest, lane.label.size());
  const double left = std::max(90.0, 20 + kCharacter * static_cast<double>(longest));
  double most = 0;
  for (const LaneSpan& span : spans) most = std::max(most, span.end);
  const double height = kRow * static_cast<double>(lanes.size());
  std::string svg = begin_svg(name, height + 28);
  const double scale = most > 0 ? (kWidth - left - kNote) / most : 0;
  for (size_t i = 0; i < lanes.size(); ++i) {
    const double y = kRow * (static_cast<double>(i) + 0.65);
    svg += text_at(left - 8, y, "end", lanes[i].label);
    svg += text_at(kWidth - kNote + 8, y, "start", lanes[i].note);
  }
  for (const LaneSpan& span : spans)
    svg += rect(left + span.begin * scale, kRow * static_cast<double>(span.lane) + 2,
                (span.end - span.begin) * scale, kRow - 5, colour(span.colour), span.label);
  for (const LaneMark& mark : marks)
    svg +=
        fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#222\"/>\n",
                    left + mark.at * scale, kRow * static_cast<double>(mark.first),
                    kRow * static_cast<double>(mark.first + mark.lanes));
  svg += text_at(left, height + 18, "start", "0") + text_at(kWidth - kNote, height + 18, "end", text(most));
  return legend_html(legend) + svg + "</svg>\n";
}

}  // namespace tessera::plan
