// The places and texts of plots, worked out by hand: 960 pixels wide, 22 high for each row.
#include "plan/svg.h"

#include <gtest/gtest.h>

namespace tessera::plan {
namespace {

std::string whole(double x) {
  return fmt::format("{:.0f}", x);
}

// The elements that begin with `start`, each to the end of its line.
std::vector<std::string> elements(const std::string& html, const std::string& start) {
  std::vector<std::string> found;
  for (size_t at = html.find(start); at != std::string::npos; at = html.find(start, at + 1))
    found.push_back(html.substr(at, html.find('\n', at) - at));
  return found;
}

using Texts = std::vector<std::string>;

TEST(Svg, BarsHaveTheLengthsOfTheirParts) {
  // The longest label has 5 characters of 6.8 pixels; 960 - 54 - 120 pixels are for 8.
  const std::string html = bar_chart("Plot", {{"whole", {2, 6}}, {"half", {4, 0}}}, {"a", "b"}, whole);
  EXPECT_EQ(elements(html, "<svg")[0],
            R"(<svg viewBox="0 0 960 52" width="960" role="img" aria-label="Plot">)");
  EXPECT_EQ(
      elements(html, "<rect"),
      (Texts{
          R"(<rect x="54.00" y="4.0" width="196.50" height="17.0" fill="#2f6fb3"><title>a: 2</title></rect>)",
          R"(<rect x="250.50" y="4.0" width="589.50" height="17.0" fill="#d9822b"><title>b: 6</title></rect>)",
          R"(<rect x="54.00" y="26.0" width="393.00" height="17.0" fill="#2f6fb3"><title>a: 4</title></rect>)"}));
  EXPECT_EQ(elements(html, "<text"), (Texts{R"(<text x="46.0" y="18.3" text-anchor="end">whole</text>)",
                                            R"(<text x="846.0" y="18.3" text-anchor="start">8</text>)",
                                            R"(<text x="46.0" y="40.3" text-anchor="end">half</text>)",
                                            R"(<text x="453.0" y="40.3" text-anchor="start">4</text>)"}));
  EXPECT_EQ(elements(html, "<p class"),
            (Texts{"<p class=\"legend\"><span style=\"color:#2f6fb3\">&#9632;</span> a &nbsp; "
                   "<span style=\"color:#d9822b\">&#9632;</span> b &nbsp; </p>"}));
}

TEST(Svg, BarsWithoutALegendHaveTheirLabels) {
  const std::string html = bar_chart("Plot", {{"x<y", {1}}, {"none", {0}}}, {}, whole);
  EXPECT_NE(html.find("<title>x&lt;y: 1</title>"), std::string::npos) << html;
  EXPECT_EQ(elements(html, "<rect").size(), 1U) << html;
  EXPECT_EQ(html.find("legend"), std::string::npos);
  EXPECT_EQ(elements(bar_chart("Plot", {{"none", {0}}}, {"one"}, whole), "<rect"), Texts());
}

TEST(Svg, LongLabelsKeepTheirEnds) {
  const auto label = [](const std::string& text) {
    const std::string element = elements(bar_chart("Plot", {{text, {1}}}, {}, whole), "<text")[0];
    EXPECT_EQ(element.substr(0, element.find('>')),
              R"(<text x="528.8" y="18.3" text-anchor="end")");  // 20 - 8 + 76 * 6.8
    return element.substr(element.find('>') + 1, element.rfind('<') - element.find('>') - 1);
  };
  EXPECT_EQ(label(std::string(76, 'x')), std::string(76, 'x'));
  EXPECT_EQ(label("ab" + std::string(75, 'x')), "\u2026" + std::string(75, 'x'));
  // No half of a character.
  EXPECT_EQ(label("abü" + std::string(74, 'x')), "\u2026" + std::string(74, 'x'));
}

TEST(Svg, PointsLieWhereTheAxesSay) {
  const std::string html = line_chart(
      "Plot",
      {{.name = "line", .points = {{0, 0}, {5, 20}, {10, 40}}},
       {.name = "<marks>", .points = {{10, 10}}, .is_line = false}},
      {.x = "X", .y = "Y", .x_text = whole, .y_text = [](double y) { return fmt::format("{:.1f}", y); }});
  EXPECT_EQ(elements(html, "<svg")[0],
            R"(<svg viewBox="0 0 960 380" width="960" role="img" aria-label="Plot">)");
  // From 105 to 940 pixels, and from 332 up to 24.
  EXPECT_EQ(
      elements(html, "<polyline"),
      (Texts{
          R"(<polyline points="105.0,332.0 522.5,178.0 940.0,24.0 " fill="none" stroke="#2f6fb3" stroke-width="1.5"/>)"}));
  EXPECT_EQ(
      elements(html, "<circle"),
      (Texts{
          R"(<circle cx="940.0" cy="255.0" r="4" fill="#d9822b"><title>&lt;marks&gt;: 10, 10.0</title></circle>)"}));
  const Texts grid = elements(html, "<line"), texts = elements(html, "<text");
  ASSERT_EQ(grid.size(), 12U);
  ASSERT_EQ(texts.size(), 14U);
  EXPECT_EQ(grid[1], R"(<line x1="272.0" x2="272.0" y1="24.0" y2="332.0" class="grid"/>)");
  EXPECT_EQ(texts[1], R"(<text x="272.0" y="348.0" text-anchor="middle">2</text>)");
  EXPECT_EQ(grid[7], R"(<line x1="105.0" x2="940.0" y1="270.4" y2="270.4" class="grid"/>)");
  EXPECT_EQ(texts[7], R"(<text x="99.0" y="274.4" text-anchor="end">8.0</text>)");
  EXPECT_EQ(texts[12], R"(<text x="522.5" y="368.0" text-anchor="middle">X</text>)");
  EXPECT_EQ(texts[13], R"(<text x="105.0" y="22.0" text-anchor="start">Y</text>)");
}

// From 10 / 1.5 to 1000 * 1.5; the logarithm of their ratio, 225, is 2.352.
TEST(Svg, LogarithmicAxesHaveThePowersOfTen) {
  const std::string html =
      line_chart("Plot", {{.name = "line", .points = {{10, 10}, {1000, 1000}}}},
                 {.x = "X", .y = "Y", .x_text = whole, .y_text = whole, .logarithmic = true});
  const Texts texts = elements(html, "<text");
  ASSERT_EQ(texts.size(), 8U);
  EXPECT_EQ(texts[0], R"(<text x="167.5" y="348.0" text-anchor="middle">10</text>)");
  EXPECT_EQ(texts[1], R"(<text x="522.5" y="348.0" text-anchor="middle">100</text>)");
  EXPECT_EQ(texts[2], R"(<text x="877.5" y="348.0" text-anchor="middle">1000</text>)");
  EXPECT_EQ(texts[4], R"(<text x="99.0" y="182.0" text-anchor="end">100</text>)");
}

TEST(Svg, APlotOfZerosOrOfNothingHasAScale) {
  for (const std::vector<std::pair<double, double>>& points :
       {std::vector<std::pair<double, double>>{{0, 0}}, {}}) {
    const std::string html = line_chart("Plot", {{.name = "line", .points = points}},
                                        {.x = "X", .y = "Y", .x_text = whole, .y_text = whole});
    EXPECT_EQ(elements(html, "<text")[5], R"(<text x="940.0" y="348.0" text-anchor="middle">1</text>)");
    EXPECT_EQ(html.find("nan"), std::string::npos) << html;
  }
}

// From 90 to 830 pixels.
TEST(Svg, SpansLieInTheirLanes) {
  const std::string html = lanes_chart("Plot", {{"rank 0", "90 %"}, {"rank 1", "<1 %"}},
                                       {{.lane = 0, .begin = 0, .end = 5, .colour = 0, .label = "first"},
                                        {.lane = 1, .begin = 5, .end = 10, .colour = 9, .label = "a & b"},
                                        {.lane = 1, .begin = 2, .end = 2, .colour = 1, .label = "short"}},
                                       {{2.5, 0, 2}, {5, 1, 1}}, {"work", "wait"}, whole);
  EXPECT_EQ(elements(html, "<svg")[0],
            R"(<svg viewBox="0 0 960 72" width="960" role="img" aria-label="Plot">)");
  EXPECT_EQ(
      elements(html, "<rect"),
      (Texts{
          R"(<rect x="90.00" y="2.0" width="370.00" height="17.0" fill="#2f6fb3"><title>first</title></rect>)",
          R"(<rect x="460.00" y="24.0" width="370.00" height="17.0" fill="#d9822b"><title>a &amp; b</title></rect>)",
          R"(<rect x="238.00" y="24.0" width="0.20" height="17.0" fill="#d9822b"><title>short</title></rect>)"}));
  EXPECT_EQ(elements(html, "<line"),
            (Texts{R"(<line x1="275.0" x2="275.0" y1="0.0" y2="44.0" stroke="#222"/>)",
                   R"(<line x1="460.0" x2="460.0" y1="22.0" y2="44.0" stroke="#222"/>)"}));
  EXPECT_EQ(elements(html, "<text"), (Texts{R"(<text x="82.0" y="14.3" text-anchor="end">rank 0</text>)",
                                            R"(<text x="838.0" y="14.3" text-anchor="start">90 %</text>)",
                                            R"(<text x="82.0" y="36.3" text-anchor="end">rank 1</text>)",
                                            R"(<text x="838.0" y="36.3" text-anchor="start">&lt;1 %</text>)",
                                            R"(<text x="90.0" y="62.0" text-anchor="start">0</text>)",
                                            R"(<text x="830.0" y="62.0" text-anchor="end">10</text>)"}));
  EXPECT_EQ(elements(lanes_chart("Plot", {{"rank 0", ""}}, {}, {}, {}, whole), "<rect"), Texts());
}

}  // namespace
}  // namespace tessera::plan
