// Plots as SVG texts, for pages without external resources. Screen readers read out the name of a plot.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::plan {

// The text with characters that are special in HTML replaced.
std::string html_escaped(std::string_view text);

using NumberText = std::function<std::string(double)>;

struct Bar {
  std::string label;
  std::vector<double> parts;  // one after the other
};
// Horizontal bars; `legend` names the parts.
std::string bar_chart(const std::string& name, const std::vector<Bar>& bars,
                      const std::vector<std::string>& legend, const NumberText& text);

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool is_line = true;  // else marks
};
struct Axes {
  std::string x, y;  // what the axes show
  NumberText x_text, y_text;
  bool logarithmic = false;  // for both axes; all numbers must be above 0
};
std::string line_chart(const std::string& name, const std::vector<Series>& series, const Axes& axes);

struct Lane {
  std::string label;
  std::string note;  // after its end
};
struct LaneSpan {
  size_t lane = 0;
  double begin = 0, end = 0;
  size_t colour = 0;  // an index into the legend
  std::string label;
};
// A line through some lanes.
struct LaneMark {
  double at = 0;
  size_t first = 0, lanes = 0;
};
std::string lanes_chart(const std::string& name, const std::vector<Lane>& lanes,
                        const std::vector<LaneSpan>& spans, const std::vector<LaneMark>& marks,
                        const std::vector<std::string>& legend, const NumberText& text);

}  // namespace tessera::plan
